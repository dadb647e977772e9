"""Advantages: with a critic, and from scores alone."""

from __future__ import annotations

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
