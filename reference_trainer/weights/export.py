"""What leaves the trainer at a weight sync: every persistent entry of the plain architecture, by name.

Plain means what an engine that knows nothing of adapters builds: an adapted layer `x` is sent as one weight,
`x.weight` = W + scale · B A, merged when it is sent; the trainer's own base does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from reference_trainer.models.lora import DRAFTERS, adapted_layers, merged_weight


def export_names(model: nn.Module, *, drafter: bool = True) -> tuple[str, ...]:
    """Names of all parameters and persistent buffers, sorted, so that every rank walks them in one order.

    A tied tensor is listed under each of its names: an engine that keeps its own copy of the LM head must get it
    explicitly, or it goes on with the old one.
    """
    return tuple(sorted(_entries(model, drafter=drafter)))


def export_tensors(model: nn.Module, *, drafter: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `(name, tensor)` in the order of `export_names`, one at a time: detached views of the live weights, and
    new tensors where an adapter is merged.

    A taker that keeps them beyond the next optimizer step must copy them. `drafter` False leaves out what an engine
    without one does not have.
    """
    entries = _entries(model, drafter=drafter)
    for name in sorted(entries):
        yield name, entries[name]()


def live_entries(model: nn.Module) -> dict[str, torch.Tensor]:
    """The live tensors under the same names, unmerged: of an adapted layer its base."""
    adapted = [f"{path}." for path, _ in adapted_layers(model)]
    return {
        name: value
        for key, value in _state(model).items()
        if (name := _plain_name(key, next((path for path in adapted if key.startswith(path)), None))) is not None
    }


def _entries(model: nn.Module, *, drafter: bool) -> dict[str, Callable[[], torch.Tensor]]:
    """By plain name, what makes the tensor: merging waits until its turn, so that one merged weight lives at a time."""
    entries: dict[str, Callable[[], torch.Tensor]] = {
        name: (lambda value=value: value)  # type: ignore[misc]
        for name, value in live_entries(model).items()
        if drafter or name.split(".")[0] not in DRAFTERS
    }
    for path, layer in adapted_layers(model):
        entries[f"{path}.weight"] = lambda layer=layer: merged_weight(layer)  # type: ignore[misc]
    return entries


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    entries = model.state_dict()
    for name, value in entries.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"cannot export {name!r}: it is a {type(value).__name__}; keep extra state out of the model"
            )
    return entries


def _plain_name(key: str, adapted: str | None) -> str | None:
    """The name in the plain architecture; None for an adapter's own weights. `adapted` is the layer's path and dot."""
    if adapted is None:
        return key
    rest = key.removeprefix(adapted)
    return adapted + rest.removeprefix("base_layer.") if rest.startswith("base_layer.") else None
