"""Log-probs and entropy of a categorical policy, and estimators of the KL divergence to another."""

from __future__ import annotations

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
