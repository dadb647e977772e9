"""Deterministic algorithms for as long as a computation of ours runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Without it, index_put(accumulate) and the backward of `w[idx]` differ from run to run on two threads.

    The switch is global to the process, so it is put back. Also usable as a decorator.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
