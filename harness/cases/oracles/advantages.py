"""Advantages: with a critic, and from scores alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def gae(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, *, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Advantages, returns, and the sum of the absolute terms that each advantage is made of, all `(B, T)`.

    Schulman et al., arXiv:1506.02438, eq. 16: A_t = Σ_l (γλ)^l δ_{t+l}, δ_t = r_t + γ V_{t+1} - V_t, the value after
    the end being 0. Masked tokens are deleted first.
    """
    advantages, returns, terms = np.zeros_like(rewards), np.zeros_like(rewards), np.zeros_like(rewards)
    for row in range(rewards.shape[0]):
        kept = np.flatnonzero(mask[row])
        reward, value = rewards[row, kept], values[row, kept]
        after = np.append(value[1:], 0.0)[: len(kept)]
        deltas = reward + gamma * after - value
        sizes = np.abs(reward) + gamma * np.abs(after) + np.abs(value)
        for index, column in enumerate(kept):
            weights = (gamma * lam) ** np.arange(len(kept) - index)
            advantages[row, column] = weights @ deltas[index:]
            returns[row, column] = advantages[row, column] + value[index]
            terms[row, column] = weights @ sizes[index:]
    return advantages, returns, terms


def standardise(x: np.ndarray, *, ddof: int, eps: float, divide_by_std: bool) -> np.ndarray:
    """(x - mean) / (std + eps) of `(N,)`; 0 when all are equal or there are too few for a deviation."""
    if len(x) <= ddof or np.all(x == x[0]):
        return np.zeros_like(x)
    centred = x - x.mean()
    return centred / (x.std(ddof=ddof) + eps) if divide_by_std else centred


def group_advantages(
    scores: np.ndarray, groups: Sequence[int], *, ddof: int, eps: float, divide_by_std: bool, singleton: str
) -> np.ndarray:
    """GRPO's advantage, `(B,)`: Shao et al., arXiv:2402.03300, sec. 4.1.2; undivided: Dr. GRPO, arXiv:2503.20783."""
    advantages = np.zeros_like(scores)
    for group in set(groups):
        rows = [row for row, other in enumerate(groups) if other == group]
        if len(rows) == 1:
            advantages[rows] = scores[rows] if singleton == "score" else 0.0
        else:
            advantages[rows] = standardise(scores[rows], ddof=ddof, eps=eps, divide_by_std=divide_by_std)
    return advantages


def rloo(scores: np.ndarray, groups: Sequence[int], *, singleton: str) -> np.ndarray:
    """Ahmadian et al., arXiv:2402.14740: each score minus the mean of the others of its group, `(B,)`."""
    advantages = np.zeros_like(scores)
    for row, group in enumerate(groups):
        others = [other for other, its in enumerate(groups) if its == group and other != row]
        if others:
            advantages[row] = math.fsum(scores[row] - scores[other] for other in others) / len(others)
        elif singleton == "score":
            advantages[row] = scores[row]
    return advantages


def reinforce_pp(rewards: np.ndarray, mask: np.ndarray, *, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Hu, arXiv:2501.03262: Σ_l γ^l r_{t+l}, and the same of |r|, both `(B, T)`; masked tokens are deleted first."""
    sums, terms = np.zeros_like(rewards), np.zeros_like(rewards)
    for row in range(rewards.shape[0]):
        kept = np.flatnonzero(mask[row])
        for index, column in enumerate(kept):
            discounts = gamma ** np.arange(len(kept) - index)
            sums[row, column] = discounts @ rewards[row, kept[index:]]
            terms[row, column] = discounts @ np.abs(rewards[row, kept[index:]])
    return sums, terms


def remax(scores: np.ndarray, baselines: np.ndarray) -> np.ndarray:
    """Li et al., arXiv:2310.10505: the sampled response's score minus the greedy one's, `(B,)`."""
    return scores - baselines


def informative_rows(scores: np.ndarray, groups: Sequence[int]) -> list[int]:
    """Dynamic sampling, DAPO, arXiv:2503.14476, sec. 3.2: rows of groups with two different scores."""
    seen = {group: {float(scores[row]) for row, its in enumerate(groups) if its == group} for group in groups}
    return [row for row, group in enumerate(groups) if len(seen[group]) > 1]
