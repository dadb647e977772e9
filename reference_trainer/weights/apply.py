"""Takes named tensors into a model: all of them, or none.

Everything is read and judged before the first weight changes, so a bad or broken update leaves the old version whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class WeightMismatch(ValueError):
    """The update does not fit the model. The model is untouched."""


def apply_tensors(model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    """Copy every tensor into the parameter or persistent buffer of its name; return how many were applied.

    Every tensor must keep its value until all have been read: a view of a buffer that is filled again does not.
    The names must be exactly those of `export_names(model)`. A floating-point tensor may differ in precision and is
    cast; any other change of dtype, a different shape, a name given twice, and tied names with different values raise
    `WeightMismatch`.
    """
    own = model.state_dict()
    received: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if name in received:
            raise WeightMismatch(f"weight update names {name!r} twice; send each tensor once")
        received[name] = tensor.detach()
    _require_same_names(own.keys(), received.keys())
    for name, target in own.items():
        _require_fits(name, target, received[name])
    _require_ties_agree(own, received)
    with torch.no_grad():
        for name, target in own.items():
            target.copy_(received[name])
    return len(own)


def _require_same_names(expected: Iterable[str], received: Iterable[str]) -> None:
    unknown = sorted(set(received) - set(expected))
    missing = sorted(set(expected) - set(received))
    if unknown or missing:
        parts = [f"{label} {_some(names)}" for label, names in (("unknown", unknown), ("missing", missing)) if names]
        raise WeightMismatch(f"weight update does not match the model: {'; '.join(parts)}; nothing was applied")


def _some(names: list[str], limit: int = 3) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _require_fits(name: str, target: torch.Tensor, tensor: torch.Tensor) -> None:
    if tensor.shape != target.shape:
        raise WeightMismatch(
            f"weight update gives {name!r} the shape {tuple(tensor.shape)}, the model has {tuple(target.shape)}; "
            "nothing was applied"
        )
    if tensor.dtype != target.dtype and not (tensor.is_floating_point() and target.is_floating_point()):
        raise WeightMismatch(
            f"weight update gives {name!r} as {tensor.dtype}, the model has {target.dtype}; nothing was applied"
        )


def _require_ties_agree(own: dict[str, torch.Tensor], received: dict[str, torch.Tensor]) -> None:
    """Names that share one storage must bring one value, or the last one written would silently win."""
    first_name: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    for name, target in own.items():
        if target.numel() == 0:
            continue
        first = first_name.setdefault((target.data_ptr(), tuple(target.shape), target.stride()), name)
        if first != name and not _same_values(received[first].to(target), received[name].to(target)):
            raise WeightMismatch(
                f"weight update gives different values for {first!r} and {name!r}, which the model ties; "
                "nothing was applied"
            )


def _same_values(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equality in which NaN equals NaN: a diverged trainer is not a tie that came apart."""
    return bool(((left == right) | ((left != left) & (right != right))).all())
