"""What leaves the trainer at a weight sync: every persistent entry of a model, by name."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def export_names(model: nn.Module) -> tuple[str, ...]:
    """Names of all parameters and persistent buffers, sorted, so that every rank walks them in one order.

    A tied tensor is listed under each of its names: an engine that keeps its own copy of the LM head must get it
    explicitly, or it goes on with the old one.
    """
    return tuple(sorted(_entries(model)))


def export_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `(name, tensor)` in the order of `export_names`, detached views of the live weights, one at a time.

    A taker that keeps them beyond the next optimizer step must copy them.
    """
    entries = _entries(model)
    for name in sorted(entries):
        yield name, entries[name]


def _entries(model: nn.Module) -> dict[str, torch.Tensor]:
    entries = model.state_dict()
    for name, value in entries.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"cannot export {name!r}: it is a {type(value).__name__}; keep extra state out of the model"
            )
    return entries
