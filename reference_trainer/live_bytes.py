"""How many bytes of tensors are alive at most while a piece of code runs, counted storage by storage.

Not seen: what an operator allocates and frees within itself, and a storage that is resized. Views are counted once, and
what was there before not at all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`with LiveBytes() as ledger: …`; then `ledger.peak` is the most bytes that were alive above those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._meet(leaf, counted=False)  # an argument never met came from outside
        answer = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(answer):
            if isinstance(leaf, torch.Tensor):
                self._meet(leaf, counted=True)
        self.peak = max(self.peak, self.now)
        return answer

    def _meet(self, tensor: torch.Tensor, *, counted: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if counted else 0

        def freed(_: object) -> None:
            self.now -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)
        self.now += size


def peak_bytes(run: Callable[[], Any]) -> int:
    """Most bytes alive above those before, while `run` runs; what it returns is held until it has returned."""
    with LiveBytes() as ledger:
        run()
    return ledger.peak
