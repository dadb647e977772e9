from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_trainer.weights.transport import Assembler, TransferError, pack

Copied = tuple[list[dict[str, Any]], bytearray]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)


def sent(tensors: list[tuple[str, torch.Tensor]], bucket_bytes: int) -> list[Copied]:
    """What a wire would carry: every bucket copied before the next is packed."""
    return [(bucket.pieces, bytearray(bucket.payload)) for bucket in pack(tensors, bucket_bytes=bucket_bytes)]


def received(buckets: list[Copied]) -> list[tuple[str, torch.Tensor]]:
    """Tensors as assembled, every buffer poisoned once it has been taken."""
    assembler, tensors = Assembler(), []
    for pieces, payload in buckets:
        tensors += list(assembler.take(pieces, memoryview(payload)))
        payload[:] = b"\xff" * len(payload)
    assembler.finish(len(tensors))
    return tensors


def some(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 200 - 100
    return values > 0 if dtype is torch.bool else values.to(dtype)


def assert_bit_equal(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8).numpy() for t in (got, expected)]
    assert np.array_equal(*as_bytes)


@st.composite
def named_tensors(draw: st.DrawFn) -> list[tuple[str, torch.Tensor]]:
    specs = draw(
        st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=0, max_size=8)
    )
    return [(f"layer.{n}", some(dtype, tuple(shape), n)) for n, (dtype, shape) in enumerate(specs)]


@settings(deadline=None, max_examples=150)
@given(tensors=named_tensors(), bucket_bytes=st.integers(1, 300), extra=st.sampled_from([0, 1, -1]))
def test_what_is_sent_arrives_bit_equal_whatever_the_bucket_size(tensors, bucket_bytes, extra):
    sizes = [tensor.numel() * tensor.element_size() for _, tensor in tensors]
    if sizes and bucket_bytes % 2:  # tensors that exactly fill a bucket, or miss it by one byte
        bucket_bytes = max(1, sizes[bucket_bytes % len(sizes)] + extra)
    buckets = sent(tensors, bucket_bytes)
    assert all(len(payload) <= bucket_bytes for _, payload in buckets)
    got = received(buckets)
    assert [name for name, _ in got] == [name for name, _ in tensors]
    for (_, tensor), (_, expected) in zip(got, tensors, strict=True):
        assert_bit_equal(tensor, expected)


@pytest.mark.parametrize("bucket_bytes", [63, 64, 65, 4096])
def test_a_received_tensor_outlives_the_buffer_also_when_it_exactly_fills_it(bucket_bytes):
    weight = some(torch.float32, (16,))  # 64 bytes
    buckets = sent([("w", weight), ("v", weight)], bucket_bytes)
    got = received(buckets)
    buffers = [np.frombuffer(payload, dtype=np.uint8) for _, payload in buckets]
    for _, tensor in got:
        assert_bit_equal(tensor, weight)
        assert not any(np.shares_memory(tensor.numpy().view(np.uint8), buffer) for buffer in buffers)


def test_two_transfers_through_one_assembler_each_keep_their_values():
    first, second = some(torch.bfloat16, (5, 3), 1), some(torch.bfloat16, (5, 3), 2)
    (_, got_first), (_, got_second) = received(sent([("w", first)], 8) + sent([("w", second)], 8))
    assert_bit_equal(got_first, first)
    assert_bit_equal(got_second, second)


def test_a_strided_tensor_arrives_as_its_values():
    weight = some(torch.float32, (6, 4)).t()[::2]
    ((_, got),) = received(sent([("w", weight)], 10))
    assert torch.equal(got, weight)


def test_one_tensor_spans_buckets_and_many_share_one():
    big, small = some(torch.float32, (10,)), some(torch.float32, (1,))
    assert [len(pieces) for pieces, _ in sent([("big", big)], 16)] == [1, 1, 1]
    assert [len(pieces) for pieces, _ in sent([(str(n), small) for n in range(4)], 16)] == [4]


def test_a_dtype_that_no_bucket_holds_is_refused_by_name():
    with pytest.raises(TransferError, match=r"'w' of torch\.complex64"):
        list(pack([("w", torch.zeros(1, dtype=torch.complex64))]))


@pytest.mark.parametrize("bucket_bytes", [0, -1])
def test_a_bucket_without_room_is_refused(bucket_bytes):
    with pytest.raises(ValueError, match="at least one byte"):
        list(pack([], bucket_bytes=bucket_bytes))


def test_a_stream_cut_short_is_noticed():
    buckets = sent([("w", some(torch.float32, (10,)))], 16)
    with pytest.raises(TransferError, match="in the middle of 'w'"):
        received(buckets[:-1])
    assembler = Assembler()
    with pytest.raises(TransferError, match="after 0 tensors; 1 were sent"):
        assembler.finish(1)


def test_a_lost_or_repeated_bucket_is_noticed():
    buckets = sent([("w", some(torch.float32, (10,)))], 16)
    with pytest.raises(TransferError, match="expected byte 16 of 'w'"):
        received([buckets[0], buckets[2]])
    with pytest.raises(TransferError, match="expected byte 16 of 'w'"):
        received([buckets[0], buckets[0]])


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "complex64"},
        {"dtype": ["float32"]},
        {"shape": [-1]},
        {"shape": 4},
        {"shape": None},
        {"start": 4},
        {"size": 17},
        {"size": -1},
        {"size": "x"},
        {"size": 12},
    ],
)
def test_a_header_that_does_not_fit_is_refused(change):
    ((pieces, payload),) = sent([("w", some(torch.float32, (4,)))], 16)
    with pytest.raises(TransferError):
        received([([{**pieces[0], **change}], payload)])


@pytest.mark.parametrize("pieces", [None, 3, {"name": "w"}, ["w"], [{}]])
def test_a_header_of_another_kind_is_refused(pieces):
    with pytest.raises(TransferError):
        received([(pieces, bytearray(4))])
