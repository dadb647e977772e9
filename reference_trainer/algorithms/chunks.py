"""A function of positions, a few of them at a time, each chunk computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.checkpoint import checkpoint


def in_recomputed_chunks(
    function: Callable[..., tuple[torch.Tensor, ...]],
    by_position: Sequence[torch.Tensor],
    shared: Sequence[torch.Tensor],
    *,
    chunk: int,
) -> tuple[torch.Tensor, ...]:
    """`function(*by_position, *shared)`, whose outputs have a row for each of the N positions, in chunks of positions.

    Of a chunk nothing but its outputs lives on: plain autograd would save every chunk's intermediate results, which is
    as much as not to chunk at all. The gradient of what is shared is added up chunk after chunk in its own type.
    """
    count = len(by_position[0])
    parts = [
        checkpoint(
            function,
            *(tensor[start : start + chunk] for tensor in by_position),
            *shared,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for start in range(0, max(count, 1), chunk)
    ]
    return tuple(torch.cat(outputs) for outputs in zip(*parts, strict=True))
