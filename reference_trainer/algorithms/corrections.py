"""Off-policy correction: the engine that sampled is not quite the policy that the trainer differentiates.

Both have the same weights, yet another precision and other kernels, so that a token's two probabilities differ. The
token loss is multiplied by the importance weight ρ = p_trainer / p_engine, held in bounds:

token_truncate     min(ρ_t, cap)                       Yao et al., "Your Efficient RL Framework Secretly Brings You
                                                       Off-Policy RL Training" (2025); Espeholt et al. (IMPALA),
                                                       arXiv:1802.01561
token_mask         ρ_t if floor <= ρ_t <= cap, else 0  Ling team, "Every Step Evolves", arXiv:2510.18855
sequence_truncate, sequence_mask
                   the same with Π ρ_t over the        Liu et al., "When Speed Kills Stability: Demystifying RL Collapse
                   counted tokens of the row           from the Training-Inference Mismatch" (2025)
none               1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from reference_trainer.algorithms.kl import LOG_RATIO_BOUND
from reference_trainer.algorithms.logprobs import at_least_float32

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A factor on each token's loss and what is worth watching about it, `(B, T)`, 0 where masked, without a graph."""

    weights: torch.Tensor
    metrics: dict[str, torch.Tensor]


@torch.no_grad()
def importance_weights(
    old_log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor,
    *,
    kind: Correction,
    cap: float = 2.0,
    floor: float = 0.0,
    log_ratio_bound: float = LOG_RATIO_BOUND,
) -> Weights:
    """Weights from the log-probs of the trainer's policy before the update and of the engine, all `(B, T)`.

    Conventions: a ratio equal to a bound is within it; `floor` is of the two masking kinds alone; the others of a
    batch are not scaled up for those that are masked; the log-ratio (of the row, for the sequence kinds) is clamped to
    ±`log_ratio_bound`. Metrics, of which the mean over counted tokens is meant: `correction_weight`, and
    `correction_fraction` (1 where a weight was cut or masked).
    Raises ValueError for an unknown kind, and unless 0 <= floor <= cap.
    """
    if kind not in get_args(Correction):
        raise ValueError(f'correction is "{kind}"; known: {", ".join(get_args(Correction))}')
    if not 0 <= floor <= cap:
        raise ValueError(f"the weight's floor is {floor} and its cap {cap}; it should be 0 <= floor <= cap")
    counted = mask.bool()
    log_ratio = torch.where(counted, at_least_float32(old_log_probs) - at_least_float32(rollout_log_probs), 0.0)
    if kind.startswith("sequence"):
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    ratio = log_ratio.clamp(-log_ratio_bound, log_ratio_bound).exp()
    if kind == "none":
        weights, cut = torch.ones_like(ratio), torch.zeros_like(counted)
    elif kind.endswith("truncate"):
        weights, cut = ratio.clamp(max=cap), ratio > cap
    else:
        cut = (ratio < floor) | (ratio > cap)
        weights = torch.where(cut, 0.0, ratio)
    weights = torch.where(counted, weights, 0.0)
    return Weights(
        weights=weights,
        metrics={"correction_weight": weights, "correction_fraction": (cut & counted).to(weights.dtype)},
    )
