"""Weights as a stream of buckets: few large messages instead of one a tensor, in a buffer of bounded size.

A bucket's header names the pieces its payload is made of. A tensor that does not fit goes on in the next bucket. What
is received is copied into memory of its own piece by piece: a view of the buffer would change under its holder when the
next bucket arrives, also where one tensor exactly fills the buffer (verl#6688, verl#6738, verl#7139).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

DEFAULT_BUCKET_BYTES = 4 << 20

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


class TransferError(RuntimeError):
    """The stream of weights is not whole, or does not follow the format."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """`payload` is a view of the buffer that the next bucket overwrites: send or copy it first."""

    pieces: list[dict[str, Any]]  # name, dtype, shape, start (byte of the tensor), size (bytes in this payload)
    payload: memoryview


def pack(tensors: Iterable[tuple[str, torch.Tensor]], *, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> Iterator[Bucket]:
    """Yield the tensors, in order, as buckets of at most `bucket_bytes`. Raises TransferError for an unknown dtype."""
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; a bucket holds at least one byte")
    buffer = np.empty(bucket_bytes, dtype=np.uint8)
    pieces: list[dict[str, Any]] = []
    used = 0
    for name, tensor in tensors:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise TransferError(f"cannot send {name!r} of {tensor.dtype}; a bucket holds {', '.join(_DTYPES)}")
        source = _bytes_of(tensor.detach().cpu().contiguous())
        start = 0
        while True:  # once for an empty tensor, too: it has a name to deliver
            size = min(len(source) - start, bucket_bytes - used)
            buffer[used : used + size] = source[start : start + size]
            pieces.append({"name": name, "dtype": dtype, "shape": list(tensor.shape), "start": start, "size": size})
            used, start = used + size, start + size
            if start == len(source):
                break
            yield Bucket(pieces=pieces, payload=buffer[:used].data)
            pieces, used = [], 0
    if pieces:
        yield Bucket(pieces=pieces, payload=buffer[:used].data)


class Assembler:
    """Turns buckets back into tensors that own their memory."""

    def __init__(self) -> None:
        self.completed = 0  # tensors
        self._name: str | None = None  # of the tensor that goes on in the next bucket
        self._tensor = torch.empty(0)
        self._filled = 0  # bytes

    def take(self, pieces: object, payload: memoryview) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that this bucket completes. Raises TransferError when it does not follow the last one."""
        offset = 0
        if not isinstance(pieces, list):
            raise TransferError(f"a bucket lists its pieces, this one has {pieces!r}")
        for piece in pieces:
            name, start, size = self._begin(piece)
            if offset + size > len(payload):
                raise TransferError(f"a bucket of {len(payload)} bytes is too short for its piece of {name!r}")
            target = _bytes_of(self._tensor)
            target[start : start + size] = np.frombuffer(payload, dtype=np.uint8)[offset : offset + size]
            offset, self._filled = offset + size, start + size
            if self._filled == len(target):
                tensor, self._tensor, self._name = self._tensor, torch.empty(0), None
                self.completed += 1
                yield name, tensor
        if offset != len(payload):
            raise TransferError(f"a bucket of {len(payload)} bytes has pieces for {offset} only")

    def finish(self, count: int) -> None:
        """Check that the stream ended where the sender says: after `count` whole tensors. Raises TransferError."""
        if self._name is not None:
            raise TransferError(f"the stream ended in the middle of {self._name!r}")
        if self.completed != count:
            raise TransferError(f"the stream ended after {self.completed} tensors; {count} were sent")

    def _begin(self, piece: Mapping[str, Any]) -> tuple[str, int, int]:
        try:
            name, start, size = piece["name"], int(piece["start"]), int(piece["size"])
            dtype, shape = _DTYPES[piece["dtype"]], tuple(int(length) for length in piece["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise TransferError(f"a bucket describes a piece as {piece!r}") from error
        if self._name is None:
            if min(shape, default=0) < 0:
                raise TransferError(f"a bucket gives {name!r} the shape {shape}")
            self._name, self._tensor, self._filled = name, torch.empty(shape, dtype=dtype), 0
        expected = (self._name, self._tensor.dtype, tuple(self._tensor.shape), self._filled)
        if (name, dtype, shape, start) != expected or not 0 <= size <= math.prod(shape) * dtype.itemsize - start:
            raise TransferError(f"a bucket goes on with {piece!r}; expected byte {self._filled} of {self._name!r}")
        return name, start, size


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous CPU tensor, `(numel * itemsize,)` of uint8: a view."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
