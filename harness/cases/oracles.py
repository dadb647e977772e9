"""The mathematics of the PPO family in float64 numpy, written from the papers and not from any implementation.

Everything here is plain and slow on purpose: loops where the paper has indices. `(B, T)` is aligned with the response,
in a mask 1 counts; what is masked is never read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def log_softmax(logits: np.ndarray, *, temperature: float) -> np.ndarray:
    """log p of every token, `(B, T, V)`; a logit of -inf is an impossible token."""
    scaled = logits / temperature
    shifted = scaled - scaled.max(axis=-1, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def token_log_probs(logits: np.ndarray, tokens: np.ndarray, *, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Log-prob of each token `(B, T)` and the gradient of their sum, `(onehot - p) / temperature`, `(B, T, V)`."""
    log_probs = log_softmax(logits, temperature=temperature)
    chosen = np.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    onehot = tokens[..., None] == np.arange(logits.shape[-1])
    return chosen, (onehot - np.exp(log_probs)) / temperature


def entropy(logits: np.ndarray, *, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """H = -Σ p log p in nats `(B, T)`, with 0 log 0 = 0, and dΣH/dlogits = -p (log p + H) / temperature."""
    log_probs = log_softmax(logits, temperature=temperature)
    probs = np.exp(log_probs)
    finite = np.where(probs > 0, log_probs, 0.0)
    value = -(probs * finite).sum(axis=-1)
    return value, -probs * (finite + value[..., None]) / temperature


def kl(
    kind: str, log_probs: np.ndarray, reference: np.ndarray, *, log_ratio_bound: float
) -> tuple[np.ndarray, np.ndarray]:
    """Estimators of KL(policy || reference) and their gradient by the policy's log-prob.

    Schulman, "Approximating KL Divergence" (2020), with log r = log p_ref - log p: k1 = -log r, k2 = (log r)² / 2,
    k3 = (r - 1) - log r. k3 is held to log r within ±`log_ratio_bound`, where it is constant beyond.
    """
    log_ratio = reference - log_probs
    if kind == "k1":
        return -log_ratio, np.ones_like(log_ratio)
    if kind == "abs":
        return np.abs(log_ratio), -np.sign(log_ratio)
    if kind == "k2":
        return log_ratio**2 / 2, -log_ratio
    if kind == "k3":
        bounded = np.clip(log_ratio, -log_ratio_bound, log_ratio_bound)
        inside = np.abs(log_ratio) <= log_ratio_bound
        return np.expm1(bounded) - bounded, np.where(inside, -np.expm1(bounded), 0.0)
    raise ValueError(f"no oracle for the KL estimator {kind!r}")


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
