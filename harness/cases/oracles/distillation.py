"""Divergence of a student's distribution from a teacher's, by GKD (Agarwal et al., arXiv:2306.13649)."""

from __future__ import annotations

import numpy as np

from harness.cases.oracles.log_probs import log_softmax


def likeliest(logits: np.ndarray, k: int) -> list[int]:
    """The k largest of `(V,)`; of equal ones the first."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:k]


def _kl_terms(log_a: np.ndarray, log_b: np.ndarray) -> np.ndarray:
    """a (log a - log b) with 0 log 0 = 0; in logarithms, since exp would lose what is far below 1."""
    return np.array([0.0 if a == -np.inf else np.exp(a) * (a - b) for a, b in zip(log_a, log_b, strict=True)])


def divergence(
    student: np.ndarray, teacher: np.ndarray, *, kind: str, jsd_beta: float, top_k: int, tail: str, temperature: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values `(N,)`, their gradient by the student's logits `(N, V)`, and the absolute terms of each.

    With u = ∂D/∂p of a category and p_j the share of token j in it: ∂D/∂z_j = p_j (u - Σ u p) / temperature, where
    reverse KL has u = log p/q (+ 1, which cancels), forward KL -q/p, and jsd (1 - β) log p/m.
    """
    count, vocabulary = student.shape
    values, sizes = np.zeros(count), np.zeros(count)
    gradients, gradient_sizes = np.zeros_like(student), np.zeros_like(student)
    for row in range(count):
        log_p_all, log_q_all = (log_softmax(x[row], temperature=temperature) for x in (student, teacher))
        whole = top_k == 0 or top_k >= vocabulary
        kept = list(range(vocabulary)) if whole else likeliest(teacher[row], top_k)
        categories = [[token] for token in kept]
        if not whole and tail == "lumped":
            categories.append([token for token in range(vocabulary) if token not in kept])
        log_p, log_q = (
            np.array([np.logaddexp.reduce(x[tokens]) for tokens in categories]) for x in (log_p_all, log_q_all)
        )
        log_p, log_q = log_p - np.logaddexp.reduce(log_p), log_q - np.logaddexp.reduce(log_q)
        log_m = np.logaddexp(np.log(jsd_beta) + log_q, np.log(1 - jsd_beta) + log_p)
        if kind == "reverse_kl":
            terms = p_u = _kl_terms(log_p, log_q)
        elif kind == "forward_kl":
            terms, p_u = _kl_terms(log_q, log_p), -np.exp(log_q)
        elif kind == "jsd":
            terms = jsd_beta * _kl_terms(log_q, log_m) + (1 - jsd_beta) * _kl_terms(log_p, log_m)
            p_u = (1 - jsd_beta) * _kl_terms(log_p, log_m)
        else:
            raise ValueError(f"no oracle for the divergence {kind!r}")
        values[row], sizes[row] = terms.sum(), np.abs(terms).sum()
        for tokens, share, part in zip(categories, np.exp(log_p), p_u, strict=True):
            together = np.logaddexp.reduce(log_p_all[tokens])
            within = np.exp(log_p_all[tokens] - together) if together > -np.inf else np.zeros(len(tokens))
            gradients[row, tokens] = within * (part - share * p_u.sum()) / temperature
            gradient_sizes[row, tokens] = within * (abs(part) + share * (1 + np.abs(p_u).sum())) / temperature
    return values, gradients, sizes, gradient_sizes
