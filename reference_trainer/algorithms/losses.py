"""Token-wise losses of the PPO family, `(B, T)` in and out; `aggregation.aggregate` makes them one number.

Inputs are cleaned under the mask first: a NaN or inf in a masked cell reaches neither value nor gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from reference_trainer.algorithms.kl import LOG_RATIO_BOUND, kl_k3
from reference_trainer.algorithms.logprobs import at_least_float32


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """A loss per token and what is worth watching about it, all `(B, T)` and 0 where masked; metrics carry no graph."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


def clean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The counted values, 0 elsewhere, in float32 at least."""
    return torch.where(mask.bool(), at_least_float32(values), 0.0)


def ppo_clip_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    log_ratio_bound: float = LOG_RATIO_BOUND,
) -> TokenLoss:
    """-min(ρA, clip(ρ, 1 - clip_low, 1 + clip_high)A) with ρ = exp(log_probs - old_log_probs).

    Schulman et al., "Proximal Policy Optimization", arXiv:1707.06347, eq. 7; separate bounds: DAPO, arXiv:2503.14476.
    All inputs `(B, T)`. Convention: log ρ is clamped to ±`log_ratio_bound`, so an overflowing ratio stays finite.
    Metrics: `clip_fraction` (1 where the clipped branch is the larger loss), `approx_kl` (k3 from old to new).
    """
    new, old, advantage = clean(log_probs, mask), clean(old_log_probs, mask), clean(advantages, mask)
    ratio = (new - old).clamp(-log_ratio_bound, log_ratio_bound).exp()
    unclipped = -ratio * advantage
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    loss = torch.maximum(unclipped, clipped)
    with torch.no_grad():
        metrics = {
            "clip_fraction": clean((clipped > unclipped).to(loss.dtype), mask),
            "approx_kl": clean(kl_k3(old, new), mask),
        }
    return TokenLoss(loss=loss, metrics=metrics)


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    *,
    value_clip: float | None = 0.2,
) -> TokenLoss:
    """½ max((V - R)², (clip(V, V_old ± value_clip) - R)²); without the clipped branch when `value_clip` is None.

    The clipping is of OpenAI's baselines (Huang et al., "The 37 Implementation Details of PPO", 2022, detail 9).
    All inputs `(B, T)`. Metric: `value_clip_fraction`.
    """
    value, old, target = clean(values, mask), clean(old_values, mask), clean(returns, mask)
    unclipped = (value - target).square() / 2
    if value_clip is None:
        return TokenLoss(loss=unclipped, metrics={"value_clip_fraction": torch.zeros_like(unclipped).detach()})
    clipped = (old + (value - old).clamp(-value_clip, value_clip) - target).square() / 2
    loss = torch.maximum(unclipped, clipped)
    with torch.no_grad():
        # Inside the clip both branches are one number, and only rounding could tell them apart.
        in_force = (clipped > unclipped) & ((value - old).abs() > value_clip)
        fraction = clean(in_force.to(loss.dtype), mask)
    return TokenLoss(loss=loss, metrics={"value_clip_fraction": fraction})
