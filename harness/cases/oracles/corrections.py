"""What multiplies a token's loss or is taken from a reward: off-policy weights, overlong shaping, KL in the reward."""

from __future__ import annotations

import numpy as np


def importance_weights(
    old: np.ndarray,
    rollout: np.ndarray,
    mask: np.ndarray,
    kind: str,
    *,
    cap: float,
    floor: float,
    log_ratio_bound: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and where one was cut or masked, both `(B, T)`.

    ρ_t = p_old / p_rollout of the token, or of all counted tokens of the row together; min(ρ, cap) when truncated
    (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025), 0 outside
    [floor, cap] when masked (IcePop: arXiv:2510.18855; sequences: Liu et al., "When Speed Kills Stability", 2025).
    log ρ is held within ±`log_ratio_bound`.
    """
    weights, cut = np.zeros(mask.shape), np.zeros(mask.shape, dtype=bool)
    for row in range(mask.shape[0]):
        kept = np.flatnonzero(mask[row])
        together = sum(old[row, column] - rollout[row, column] for column in kept)
        for column in kept:
            log_ratio = together if kind.startswith("sequence_") else old[row, column] - rollout[row, column]
            ratio = float(np.exp(min(max(log_ratio, -log_ratio_bound), log_ratio_bound)))
            if kind == "none":
                weights[row, column] = 1.0
            elif kind.endswith("_truncate"):
                weights[row, column], cut[row, column] = min(ratio, cap), ratio > cap
            elif kind.endswith("_mask"):
                inside = floor <= ratio <= cap
                weights[row, column], cut[row, column] = ratio if inside else 0.0, not inside
            else:
                raise ValueError(f"no oracle for the correction {kind!r}")
    return weights, cut


def overlong_penalty(
    lengths: np.ndarray, *, max_length: int, buffer: int | None, factor: float, enabled: bool
) -> np.ndarray:
    """DAPO, arXiv:2503.14476, eq. 13, times `factor`, `(B,)`: ((max - buffer) - L) / buffer beyond max - buffer."""
    if not enabled or buffer is None:
        return np.zeros(lengths.shape)
    return np.minimum(0.0, ((max_length - buffer) - lengths) / buffer * factor)


def kl_penalised_rewards(rewards: np.ndarray, kl: np.ndarray, mask: np.ndarray, *, coefficient: float) -> np.ndarray:
    """Ziegler et al., arXiv:1909.08593, eq. 2: r - β KL at each counted token, `(B, T)`."""
    return np.where(mask > 0, rewards - coefficient * kl, 0.0)
