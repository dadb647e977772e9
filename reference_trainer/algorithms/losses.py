"""Token-wise losses of the PPO family, `(B, T)` in and out; `aggregation.aggregate` makes them one number.

Inputs are cleaned under the mask first: a NaN or inf in a masked cell reaches neither value nor gradient.
`weights` `(B, T)` of off-policy correction multiply a policy loss, not its metrics, and are never differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from reference_trainer.algorithms.kl import LOG_RATIO_BOUND, kl_k3
from reference_trainer.algorithms.logprobs import at_least_float32

PolicyLoss = Literal["ppo_clip", "gspo", "cispo"]


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
    dual_clip: float | None = None,
    weights: torch.Tensor | None = None,
    log_ratio_bound: float = LOG_RATIO_BOUND,
) -> TokenLoss:
    """-min(ρA, clip(ρ, 1 - clip_low, 1 + clip_high)A) with ρ = exp(log_probs - old_log_probs).

    Schulman et al., "Proximal Policy Optimization", arXiv:1707.06347, eq. 7; separate bounds: DAPO, arXiv:2503.14476.
    `dual_clip` c, for A < 0 alone: at most -cA. Ye et al., arXiv:1912.09729.
    All inputs `(B, T)`. Convention: log ρ is clamped to ±`log_ratio_bound`, so an overflowing ratio stays finite.
    Metrics: `clip_fraction` (1 where the clipped branch is the larger loss), `approx_kl` (k3 from old to new), and with
    `dual_clip` its `dual_clip_fraction`. Raises ValueError unless `dual_clip` is above 1.
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}; it bounds the ratio from above and should be more than 1")
    new, old, advantage = clean(log_probs, mask), clean(old_log_probs, mask), clean(advantages, mask)
    ratio = (new - old).clamp(-log_ratio_bound, log_ratio_bound).exp()
    loss, clipped = _clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high)
    metrics = {"clip_fraction": _fraction(clipped, mask, loss.dtype), "approx_kl": _approx_kl(new, old, mask)}
    if dual_clip is not None:
        most = -dual_clip * advantage
        cut = (advantage < 0) & (loss > most)
        loss = torch.where(cut, most, loss)
        metrics["dual_clip_fraction"] = _fraction(cut, mask, loss.dtype)
    return TokenLoss(loss=_weighted(loss, weights, mask), metrics=metrics)


def gspo_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    weights: torch.Tensor | None = None,
    log_ratio_bound: float = LOG_RATIO_BOUND,
) -> TokenLoss:
    """PPO's clipped surrogate with one ratio a row, s = exp(mean over its counted tokens of log_probs - old_log_probs).

    Zheng et al., "Group Sequence Policy Optimization", arXiv:2507.18071, eq. 5 and 7, in the token form of eq. 14:
    each token has sg(s) · p / sg(p), whose value is s and whose gradient by the token's own log-prob is s. Where a row
    has one advantage, averaging over tokens and then rows (`seq_mean_token_mean`) gives the sequence form.
    All inputs `(B, T)`. Conventions: the paper's bounds of sec. 5.1; the mean is clamped to ±`log_ratio_bound` and has
    no gradient beyond. Metrics as in `ppo_clip_loss`, `clip_fraction` being 1 for each token of a clipped row.
    """
    new, old, advantage = clean(log_probs, mask), clean(old_log_probs, mask), clean(advantages, mask)
    lengths = mask.bool().sum(-1, keepdim=True).clamp(min=1)  # (B, 1)
    mean = ((new - old).sum(-1, keepdim=True) / lengths).detach()
    ratio = (mean + (new - new.detach())).clamp(-log_ratio_bound, log_ratio_bound).exp()
    loss, clipped = _clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high)
    metrics = {"clip_fraction": _fraction(clipped, mask, loss.dtype), "approx_kl": _approx_kl(new, old, mask)}
    return TokenLoss(loss=_weighted(loss, weights, mask), metrics=metrics)


def cispo_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float = 0.2,
    weights: torch.Tensor | None = None,
    log_ratio_bound: float = LOG_RATIO_BOUND,
) -> TokenLoss:
    """-sg(clip(ρ, 1 - clip_low, 1 + clip_high)) · A · log_probs with ρ = exp(log_probs - old_log_probs).

    CISPO: MiniMax-M1, arXiv:2506.13585, sec. 3.1. The clipped ratio is a weight: every token keeps a gradient.
    All inputs `(B, T)`. Conventions: `clip_low` 1 is no lower bound, as in the paper; log ρ is clamped to
    ±`log_ratio_bound`. Metrics: `clip_fraction` (1 where ρ is outside the bounds), `approx_kl` (k3 from old to new).
    """
    new, old, advantage = clean(log_probs, mask), clean(old_log_probs, mask), clean(advantages, mask)
    ratio = (new - old).detach().clamp(-log_ratio_bound, log_ratio_bound).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    metrics = {
        "clip_fraction": _fraction(ratio != bounded, mask, ratio.dtype),
        "approx_kl": _approx_kl(new, old, mask),
    }
    return TokenLoss(loss=_weighted(-bounded * advantage * new, weights, mask), metrics=metrics)


def policy_loss(
    kind: PolicyLoss,
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    weights: torch.Tensor | None = None,
) -> TokenLoss:
    """The named loss, all inputs `(B, T)`; `weights`, of off-policy correction, multiply the token's loss.

    Raises ValueError for an unknown kind, and for a `dual_clip` that the kind has not.
    """
    inputs = (log_probs, old_log_probs, advantages, mask)
    if dual_clip is not None and kind != "ppo_clip":
        raise ValueError(f'dual_clip is {dual_clip}, which only "ppo_clip" has, and not "{kind}"; give None')
    match kind:
        case "ppo_clip":
            return ppo_clip_loss(*inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, weights=weights)
        case "gspo":
            return gspo_loss(*inputs, clip_low=clip_low, clip_high=clip_high, weights=weights)
        case "cispo":
            return cispo_loss(*inputs, clip_low=clip_low, clip_high=clip_high, weights=weights)
        case _:
            raise ValueError(f'policy loss is "{kind}"; known: {", ".join(get_args(PolicyLoss))}')


def _clipped_surrogate(
    ratio: torch.Tensor, advantage: torch.Tensor, *, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """-min(ρA, clip(ρ)A), and where the clipped one is in force."""
    unclipped = -ratio * advantage
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    return torch.maximum(unclipped, clipped), clipped > unclipped


def _weighted(loss: torch.Tensor, weights: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor:
    """Token losses times weights of off-policy correction, which are numbers and never differentiated."""
    return loss if weights is None else loss * clean(weights.detach(), mask)


def _fraction(where: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return clean(where.to(dtype), mask)


def _approx_kl(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return clean(kl_k3(old.detach(), new.detach()), mask)


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
