"""Sampling and speculative sampling in float64 (arXiv:1904.09751; Leviathan et al., arXiv:2211.17192)."""

from __future__ import annotations

import numpy as np


def sampled(logits: np.ndarray, *, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution `(V,)` that a token is drawn from: temperature, then top-k, then top-p; 0 is greedy."""
    if temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    weights = np.exp((logits - logits.max()) / temperature)
    ranking = np.argsort(-weights, kind="stable")
    kept = list(ranking[: top_k or None])
    mass = 0.0
    nucleus: list[int] = []
    for token in kept:
        if nucleus and mass >= top_p * weights[kept].sum():
            break
        nucleus.append(token)
        mass += weights[token]
    probabilities = np.zeros(len(logits))
    probabilities[nucleus] = weights[nucleus] / weights[nucleus].sum()
    return probabilities


def own_choices(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The distribution `(V,)` of the token in a rejected draft's place: norm(max(0, p - q)); p where q equals it."""
    excess = np.maximum(p - q, 0.0)
    return excess / excess.sum() if excess.sum() > 1e-15 else p
