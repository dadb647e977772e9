"""Log-prob and entropy from hidden states in every variant; `value` is log p + w · H, one gradient for both."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases.functions.base import Arrays, Expected, Function, Quantity, Settings
from harness.cases.oracles.from_hidden import log_probs_from_hidden
from harness.strategies import numbers, table

VARIANTS = ("dense", "logsumexp", "chunked", "fused")


@st.composite
def head_inputs(draw: st.DrawFn, *, variants: tuple[str, ...], most_rows: int, most_tokens: int) -> dict[str, Any]:
    """Hidden states `(N, H)`, the head `(V, H)` and a token each; logits to 4e4; chunks from 1 to N + 1."""
    rows, size = draw(st.integers(0, most_rows)), draw(st.integers(1, 4))
    vocabulary = draw(st.integers(1, most_tokens))
    scale = draw(st.sampled_from([1.0, 1.0, 30.0, 1e4]))
    element = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), numbers(1.0))  # ties, often
    inputs = {
        "hidden": draw(table(rows, size, element.map(lambda x: x * scale))),
        "weight": draw(table(vocabulary, size, element)),
        "tokens": draw(st.lists(st.integers(0, vocabulary - 1), min_size=rows, max_size=rows)),
    }
    settings = {
        "variant": draw(st.sampled_from(variants)),
        "chunk": draw(st.integers(1, rows + 1)),
        "temperature": draw(st.sampled_from([1.0, 0.25, 0.7, 1.5])),
        "softcap": draw(st.sampled_from([None, None, 30.0, 2.0])),
        "entropy_weight": draw(st.sampled_from([0.0, 0.1, -1.0])),
        "strided": draw(st.booleans()),
    }
    return {
        "shape": {"hidden": [rows, size], "weight": [vocabulary, size], "tokens": [rows]},
        "settings": settings,
        "inputs": inputs,
    }


def expect_from_hidden(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    """`eps` of the inputs' type, in which the logits and their gradient are stored.

    With |z| the sum of the absolute terms of a logit, s is off by eps (H + 2)|z| and less beyond a soft cap's knee, and
    p by no more than p expm1(2 max s's error), and never by more than 1. The rest is what that does to the formulas.
    """
    hidden, weight, tokens = inputs["hidden"], inputs["weight"], inputs["tokens"].astype(np.int64)
    temperature, softcap, bonus = (settings[name] for name in ("temperature", "softcap", "entropy_weight"))
    log_probs, entropies, by_hidden, by_weight = log_probs_from_hidden(
        hidden, weight, tokens, temperature=temperature, softcap=softcap, entropy_weight=bonus
    )
    vocabulary, terms = len(weight), np.abs(hidden) @ np.abs(weight).T
    logits = hidden @ weight.T
    off_logit = eps * (hidden.shape[1] + 2) * terms
    bend = np.zeros_like(logits) if softcap is None else np.abs(np.tanh(logits / softcap))
    slope = 1 - bend**2
    off_slope = 0.0 if softcap is None else 2 * np.minimum(off_logit / softcap, 1.0) + 8 * eps
    capped = np.abs(logits) if softcap is None else softcap * bend
    off_scaled = (np.minimum(off_logit, 2 * (softcap or np.inf)) + 8 * eps * capped) / temperature
    off = 2 * off_scaled.max(-1, initial=0.0) + 4 * eps * (vocabulary + 2)  # of log p, (N,)
    every = _log_softmax(softcap * np.tanh(logits / softcap) if softcap else logits, temperature)
    probs = np.exp(every)
    off_p = np.minimum(probs * np.expm1(np.minimum(off, 700.0))[:, None], 1.0)
    most = np.log(vocabulary)
    off_entropy = np.minimum((off_p * (np.abs(every) + off[:, None] + 1)).sum(-1) + off, most) + 4 * eps * (
        vocabulary + 2 + capped.max(-1, initial=0.0) / temperature
    )
    spread = np.abs(every) + entropies[:, None]
    off_scaled_gradient = off_p + abs(bonus) * (
        off_p * (spread + off[:, None] + off_entropy[:, None]) + probs * (off + off_entropy)[:, None]
    )
    chosen = tokens[:, None] == np.arange(vocabulary)
    scaled_gradient = chosen + probs + abs(bonus) * probs * spread
    off_gradient = (off_scaled_gradient * (slope + off_slope) + scaled_gradient * (off_slope + 4 * eps)) / temperature
    size = scaled_gradient * slope / temperature
    off_by_hidden = (off_gradient + eps * (vocabulary + 2) * size) @ np.abs(weight)
    # Chunks may be added up in the inputs' type: one rounding of the sum so far for each of at most N.
    off_by_weight = (off_gradient + eps * (len(hidden) + 2) * size).T @ np.abs(hidden)
    off_value = off + abs(bonus) * off_entropy
    return Expected(
        outputs={
            "value": Quantity(value=log_probs + bonus * entropies, error=off_value),
            "log_probs": Quantity(value=log_probs, error=off),
            "entropies": Quantity(value=entropies, error=off_entropy),
        },
        gradients={
            "hidden": Quantity(value=by_hidden, error=off_by_hidden),
            "weight": Quantity(value=by_weight, error=off_by_weight),
        },
    )


def _log_softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits / temperature
    return scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)


FUNCTIONS = {
    "log_probs.from_hidden": Function(
        inputs=head_inputs(variants=VARIANTS, most_rows=5, most_tokens=6), expect=expect_from_hidden, stores_half=True
    )
}
