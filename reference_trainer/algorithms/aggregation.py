"""How token losses `(B, T)` become one number, so that the split into micro-batches never matters.

Every mode is a sum over tokens divided by a count. The counts are taken once over the whole mini-batch
(`Denominators`) and handed to each micro-batch: the parts then add up to the whole, in value and in gradient.

token_mean            Σ loss / tokens                       (DAPO, arXiv:2503.14476, eq. 8)
seq_mean_token_mean   mean over rows of the row's mean      (GRPO, arXiv:2402.03300, eq. 3)
seq_mean_token_sum    mean over rows of the row's sum
seq_mean_token_sum_norm  the same divided by a constant horizon  (Dr. GRPO, arXiv:2503.20783)

Conventions: a row without counted tokens is left out of the mean over rows (`empty_row="left_out"`) or counted as 0
(`"counted"`); a batch without counted tokens gives 0, with a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from reference_trainer.algorithms.logprobs import at_least_float32

Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
EmptyRow = Literal["left_out", "counted"]


@dataclass(frozen=True, kw_only=True)
class Denominators:
    """Counts over a whole mini-batch: its counted tokens, and the rows that a mean over rows divides by."""

    tokens: int
    rows: int


def denominators(mask: torch.Tensor, *, empty_row: EmptyRow = "left_out") -> Denominators:
    """Count a whole mini-batch, mask `(B, T)`."""
    counted = mask.bool()
    rows = counted.shape[0] if empty_row == "counted" else int(counted.any(-1).sum())
    return Denominators(tokens=int(counted.sum()), rows=rows)


def masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Σ of the counted values, a scalar. What is masked, NaN and inf too, reaches neither value nor gradient."""
    return torch.where(mask.bool(), at_least_float32(values), 0.0).sum()


def aggregate(
    values: torch.Tensor,
    mask: torch.Tensor,
    mode: Aggregation,
    *,
    whole: Denominators | None = None,
    horizon: int | None = None,
    empty_row: EmptyRow = "left_out",
) -> torch.Tensor:
    """Aggregate token losses `(B, T)` under mask `(B, T)` to a scalar.

    `whole` counts the mini-batch that this is a part of; None: this is all of it. `horizon` is the constant length
    of seq_mean_token_sum_norm; None: T. Raises ValueError for an unknown mode.
    """
    whole = whole or denominators(mask, empty_row=empty_row)
    counted = mask.bool()
    kept = torch.where(counted, at_least_float32(values), 0.0)  # (B, T)
    rows = max(whole.rows, 1)
    match mode:
        case "token_mean":
            return kept.sum() / max(whole.tokens, 1)
        case "seq_mean_token_sum":
            return kept.sum() / rows
        case "seq_mean_token_mean":
            lengths = counted.sum(-1).clamp(min=1)  # (B,)
            return (kept.sum(-1) / lengths).sum() / rows
        case "seq_mean_token_sum_norm":
            length = horizon if horizon is not None else mask.shape[-1]
            return kept.sum() / (rows * max(length, 1))
        case _:
            raise ValueError(f'aggregation is "{mode}"; known: {", ".join(Aggregation.__args__)}')


def token_mean(values: torch.Tensor, mask: torch.Tensor) -> float:
    """Mean over the counted tokens, 0.0 without any."""
    return (masked_sum(values, mask) / mask.sum().clamp(min=1)).item()
