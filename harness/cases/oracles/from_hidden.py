"""Log-prob and entropy of a token from a hidden state and the head's weight."""

from __future__ import annotations

import numpy as np

from harness.cases.oracles.log_probs import entropy, token_log_probs


def log_probs_from_hidden(
    hidden: np.ndarray,
    weight: np.ndarray,
    tokens: np.ndarray,
    *,
    temperature: float,
    softcap: float | None,
    entropy_weight: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log-probs `(N,)`, entropies `(N,)`, and the gradient of Σ log p + w Σ H by hidden `(N, H)` and weight `(V, H)`.

    z = hidden weightᵀ, s = cap · tanh(z / cap), p = softmax(s / temperature).
    """
    logits = hidden @ weight.T
    capped = logits if softcap is None else softcap * np.tanh(logits / softcap)
    slope = np.ones_like(logits) if softcap is None else 1 - np.tanh(logits / softcap) ** 2
    log_probs, by_log_prob = token_log_probs(capped, tokens, temperature=temperature)
    entropies, by_entropy = entropy(capped, temperature=temperature)
    by_logits = (by_log_prob + entropy_weight * by_entropy) * slope
    return log_probs, entropies, by_logits @ weight, by_logits.T @ hidden
