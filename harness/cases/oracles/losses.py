"""Losses of policy and critic, and how token losses become one number."""

from __future__ import annotations

import numpy as np


def ppo_clip(
    log_probs: np.ndarray, old: np.ndarray, advantages: np.ndarray, *, low: float, high: float, log_ratio_bound: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-min(ρA, clip(ρ, 1 - low, 1 + high)A), its gradient by the new log-prob, and where the clipped one was taken.

    Schulman et al., arXiv:1707.06347, eq. 7. log ρ is held within ±`log_ratio_bound` and has no gradient beyond.
    """
    log_ratio = log_probs - old
    ratio = np.exp(np.clip(log_ratio, -log_ratio_bound, log_ratio_bound))
    unclipped, clipped = ratio * advantages, np.clip(ratio, 1 - low, 1 + high) * advantages
    moves = (unclipped <= clipped) & (np.abs(log_ratio) <= log_ratio_bound)
    return -np.minimum(unclipped, clipped), np.where(moves, -unclipped, 0.0), clipped < unclipped


def dual_clip(
    log_probs: np.ndarray,
    old: np.ndarray,
    advantages: np.ndarray,
    *,
    low: float,
    high: float,
    dual: float,
    log_ratio_bound: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PPO's clipped loss, its gradient, and where the second bound was taken.

    Ye et al., arXiv:1912.09729: where A < 0 the objective is max(min(ρA, clip(ρ)A), cA), with c = `dual`.
    """
    loss, gradient, _ = ppo_clip(log_probs, old, advantages, low=low, high=high, log_ratio_bound=log_ratio_bound)
    taken = (advantages < 0) & (-loss < dual * advantages)
    return np.where(taken, -dual * advantages, loss), np.where(taken, 0.0, gradient), taken


def gspo(
    log_probs: np.ndarray,
    old: np.ndarray,
    advantages: np.ndarray,
    mask: np.ndarray,
    *,
    low: float,
    high: float,
    log_ratio_bound: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The token losses, the gradient of each by its own log-prob, and where the clipped one was taken, all `(B, T)`.

    Zheng et al., arXiv:2507.18071: s = (p(y) / p_old(y))^(1/|y|) (eq. 7), and each token has the value s and the
    gradient of sg(s) p / sg(p) (eq. 14), which by log p is s. log s is held within ±`log_ratio_bound`, constant beyond.
    """
    loss, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    clipped = np.zeros(mask.shape, dtype=bool)
    for row in range(mask.shape[0]):
        kept = np.flatnonzero(mask[row])
        if len(kept) == 0:
            continue
        log_s = (log_probs[row, kept].sum() - old[row, kept].sum()) / len(kept)
        s = np.exp(min(max(log_s, -log_ratio_bound), log_ratio_bound))
        bounded = min(max(s, 1 - low), 1 + high)
        for column in kept:
            advantage = advantages[row, column]
            loss[row, column] = -min(s * advantage, bounded * advantage)
            clipped[row, column] = bounded * advantage < s * advantage
            if not clipped[row, column] and abs(log_s) <= log_ratio_bound:
                gradient[row, column] = -s * advantage
    return loss, gradient, clipped


def cispo(
    log_probs: np.ndarray, old: np.ndarray, advantages: np.ndarray, *, low: float, high: float, log_ratio_bound: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The token losses, their gradient, and where the ratio was clipped.

    MiniMax-M1, arXiv:2506.13585, sec. 3.1: -sg(clip(ρ, 1 - low, 1 + high)) A log p, so the gradient is -clip(ρ) A.
    """
    ratio = np.exp(np.clip(log_probs - old, -log_ratio_bound, log_ratio_bound))
    weight = np.minimum(np.maximum(ratio, 1 - low), 1 + high)
    return -weight * advantages * log_probs, -weight * advantages, (ratio < 1 - low) | (ratio > 1 + high)


def clipped_value_loss(
    values: np.ndarray, old: np.ndarray, returns: np.ndarray, *, clip: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """½ max((V - R)², (V_clipped - R)²), its gradient by V, and where the clipped one was taken.

    Huang et al., "The 37 Implementation Details of PPO" (2022), detail 9: V_clipped = V_old + clip(V - V_old, ±clip).
    """
    unclipped = (values - returns) ** 2 / 2
    if clip is None:
        return unclipped, values - returns, np.zeros(values.shape, dtype=bool)
    bounded = old + np.clip(values - old, -clip, clip)
    clipped = (bounded - returns) ** 2 / 2
    taken = clipped > unclipped
    return np.maximum(unclipped, clipped), np.where(taken, 0.0, values - returns), taken


def aggregation_weights(mask: np.ndarray, mode: str, *, empty_row: str, horizon: int | None) -> np.ndarray:
    """What each token's loss is multiplied by, `(B, T)`; every aggregation is a weighted sum.

    token_mean: DAPO, arXiv:2503.14476, eq. 8; seq_mean_token_mean: GRPO, arXiv:2402.03300, eq. 3;
    seq_mean_token_sum_norm: Dr. GRPO, arXiv:2503.20783, a constant horizon in place of the lengths.
    """
    counted = mask.astype(np.float64)
    lengths = counted.sum(axis=1)
    rows = len(lengths) if empty_row == "counted" else int((lengths > 0).sum())
    if counted.sum() == 0:
        return counted
    if mode == "token_mean":
        return counted / counted.sum()
    if mode == "seq_mean_token_sum":
        return counted / rows
    if mode == "seq_mean_token_mean":
        return counted / np.maximum(lengths, 1)[:, None] / rows
    if mode == "seq_mean_token_sum_norm":
        return counted / (horizon if horizon is not None else mask.shape[1]) / rows
    raise ValueError(f"no oracle for the aggregation {mode!r}")
