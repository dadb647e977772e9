"""Advantages: with a critic (GAE), from differences within a group, from a baseline, or from the rewards alone.

Estimators from scores give one number a row, `(B,)`: every counted token of the row has it.
Equal scores give exactly 0: differences are taken in float64, where those of nearby numbers are exact.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import torch

from reference_trainer.algorithms.groups import degenerate_groups, rows_by_group
from reference_trainer.algorithms.logprobs import at_least_float32

Singleton = Literal["zero", "score"]

__all__ = [
    "Singleton",
    "degenerate_groups",
    "gae",
    "group_advantages",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "rloo",
    "whiten",
]


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, each `(B, T)` and 0 where masked, from rewards, values and mask `(B, T)`.

    Schulman et al., "High-Dimensional Continuous Control Using GAE", arXiv:1506.02438, eq. 16:
    δ_t = r_t + γ V_{t+1} - V_t, A_t = δ_t + γλ A_{t+1}, return A_t + V_t; the value after the last counted token is 0.
    Masked tokens are as if deleted: the next counted token follows the last one, and nothing of them is read.
    """
    counted = mask.bool()
    reward = torch.where(counted, at_least_float32(rewards), 0.0)
    value = torch.where(counted, at_least_float32(values), 0.0)
    next_value = torch.zeros_like(value[:, 0]) if value.shape[1] else value.new_zeros(value.shape[0])  # (B,)
    next_advantage = torch.zeros_like(next_value)
    advantages = torch.zeros_like(value)
    for t in reversed(range(value.shape[1])):
        here = counted[:, t]
        delta = reward[:, t] + gamma * next_value - value[:, t]
        next_advantage = torch.where(here, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(here, value[:, t], next_value)
        advantages[:, t] = torch.where(here, next_advantage, 0.0)
    return advantages, advantages + value


def whiten(values: torch.Tensor, mask: torch.Tensor, *, std_ddof: int = 1, std_eps: float = 1e-6) -> torch.Tensor:
    """Counted values brought to mean 0 and deviation 1, `(B, T)`; 0 where masked, and 0 when all are equal.

    Two passes in float64: E[x²] - E[x]² would lose a small variance on a large offset.
    """
    counted = mask.bool()
    whitened = torch.zeros_like(at_least_float32(values))
    whitened[counted] = _standardised(values[counted], std_ddof=std_ddof, std_eps=std_eps, divide_by_std=True).to(
        whitened.dtype
    )
    return whitened


def group_advantages(
    scores: torch.Tensor,
    groups: Sequence[Hashable],
    *,
    std_ddof: int = 1,
    std_eps: float = 1e-6,
    divide_by_std: bool = True,
    singleton: Singleton = "zero",
) -> torch.Tensor:
    """(score - mean of its group) / (deviation of its group + std_eps), scores `(B,)` to `(B,)`.

    Shao et al., "DeepSeekMath" (GRPO), arXiv:2402.03300, sec. 4.1.2; without the division: Dr. GRPO, arXiv:2503.20783.
    `groups` names each row's group by any hashable: equal identity is one group, whatever order or size.
    Equal scores give exactly 0. Conventions: `singleton`, the advantage of a sample alone in its group.
    Raises ValueError when scores and groups differ in length.
    """
    advantages = torch.zeros_like(at_least_float32(scores))
    for rows in rows_by_group(scores, groups):
        if len(rows) == 1:
            advantages[rows] = 0.0 if singleton == "zero" else scores[rows].to(advantages.dtype)
            continue
        advantages[rows] = _standardised(
            scores[rows], std_ddof=std_ddof, std_eps=std_eps, divide_by_std=divide_by_std
        ).to(advantages.dtype)
    return advantages


def rloo(scores: torch.Tensor, groups: Sequence[Hashable], *, singleton: Singleton = "zero") -> torch.Tensor:
    """score - mean of the other scores in its group, scores `(B,)` to `(B,)`.

    RLOO: Ahmadian et al., "Back to Basics", arXiv:2402.14740, after Kool et al., 2019.
    Groups as in `group_advantages`. Conventions: `singleton`, the advantage of a sample that has no others.
    """
    advantages = torch.zeros_like(at_least_float32(scores))
    for rows in rows_by_group(scores, groups):
        if len(rows) == 1:
            advantages[rows] = 0.0 if singleton == "zero" else scores[rows].to(advantages.dtype)
            continue
        # score - (sum - score) / (n - 1) is this fraction of score - mean.
        centred = _standardised(scores[rows], std_ddof=0, std_eps=0.0, divide_by_std=False)
        advantages[rows] = (centred * len(rows) / (len(rows) - 1)).to(advantages.dtype)
    return advantages


def reinforce_pp(rewards: torch.Tensor, mask: torch.Tensor, *, gamma: float = 1.0) -> torch.Tensor:
    """Discounted sum of the rewards from each token on, rewards and mask `(B, T)` to `(B, T)`; 0 where masked.

    REINFORCE++: Hu, arXiv:2501.03262: G_t = r_t + γ G_{t+1}. Whitened over the batch afterwards (`whiten`).
    Masked tokens are as if deleted: they neither count for the discount nor is their reward read.
    """
    counted = mask.bool()
    reward = torch.where(counted, at_least_float32(rewards), 0.0)
    following = reward.new_zeros(reward.shape[0])  # (B,)
    sums = torch.zeros_like(reward)
    for t in reversed(range(reward.shape[1])):
        following = torch.where(counted[:, t], reward[:, t] + gamma * following, following)
        sums[:, t] = torch.where(counted[:, t], following, 0.0)
    return sums


def reinforce_pp_baseline(
    scores: torch.Tensor, groups: Sequence[Hashable], *, singleton: Singleton = "zero"
) -> torch.Tensor:
    """score - mean of its group, scores `(B,)` to `(B,)`; no division by the group's deviation.

    REINFORCE++-baseline: Hu, arXiv:2501.03262. Whitened over the batch afterwards, token by token (`whiten`).
    Groups and `singleton` as in `group_advantages`.
    """
    return group_advantages(scores, groups, divide_by_std=False, singleton=singleton)


def remax(scores: torch.Tensor, baselines: torch.Tensor) -> torch.Tensor:
    """score - score of the greedy response to the same prompt, both `(B,)`, to `(B,)`.

    ReMax: Li et al., arXiv:2310.10505. Raises ValueError when the two differ in shape.
    """
    if scores.shape != baselines.shape:
        raise ValueError(f"scores are {tuple(scores.shape)} but baselines {tuple(baselines.shape)}; give one a row")
    return (scores.double() - baselines.double()).to(at_least_float32(scores).dtype)


def _standardised(x: torch.Tensor, *, std_ddof: int, std_eps: float, divide_by_std: bool) -> torch.Tensor:
    """x `(N,)` minus its mean, over its deviation, in float64; 0 when all are equal or there are too few."""
    if x.numel() <= std_ddof:
        return torch.zeros_like(x, dtype=torch.float64)
    # Differences to the first element are exact for nearby numbers, so equal ones give 0 and not a rounding residue.
    shifted = x.double() - x[0].double()
    centred = shifted - shifted.mean()
    if not divide_by_std or not shifted.any():
        return centred
    deviation = (centred.square().sum() / (x.numel() - std_ddof)).sqrt()
    return centred / (deviation + std_eps)
