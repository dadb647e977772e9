"""Log-probs, entropy and KL estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases import oracles
from harness.cases.functions.base import (
    ANYTHING,
    LOG_RATIO_BOUND,
    Arrays,
    Expect,
    Expected,
    Function,
    Quantity,
    Settings,
)
from harness.strategies import numbers, shapes, table


@st.composite
def _logits(draw: st.DrawFn, *, with_tokens: bool) -> dict[str, Any]:
    rows, columns = draw(shapes(3, 4))
    vocabulary = draw(st.integers(2, 6))
    scale = draw(st.sampled_from([1.0, 1.0, 30.0, 1e4]))
    logits = draw(
        st.lists(table(columns, vocabulary, numbers(1.0).map(lambda x: x * scale)), min_size=rows, max_size=rows)
    )
    impossible = draw(st.integers(0, vocabulary - 1) | st.none())
    if impossible is not None:
        logits = [[[*row[:impossible], "-inf", *row[impossible + 1 :]] for row in block] for block in logits]
    inputs: dict[str, Any] = {"logits": logits}
    if with_tokens:
        possible = [token for token in range(vocabulary) if token != impossible]
        inputs["tokens"] = draw(table(rows, columns, st.sampled_from(possible)))
    settings = {"temperature": draw(st.sampled_from([1.0, 0.25, 0.7, 1.5]))}
    return {"shape": [rows, columns, vocabulary], "settings": settings, "inputs": inputs}


def _log_softmax_error(logits: np.ndarray, temperature: float, eps: float) -> np.ndarray:
    """log p = s - max s - log Σ exp(s - max s), s = z / temperature: s is off by eps·|s|, the sum by eps·V."""
    size = np.abs(np.where(np.isfinite(logits), logits, 0.0)).max(axis=-1, initial=0.0) / temperature
    return 4 * eps * (logits.shape[-1] + 2 + size)


def _expect_token_log_probs(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    logits, tokens = inputs["logits"], inputs["tokens"].astype(np.int64)
    value, gradient = oracles.token_log_probs(logits, tokens, **settings)
    error = _log_softmax_error(logits, settings["temperature"], eps)
    spread = np.broadcast_to(error[..., None], logits.shape)  # p is off by p·error
    return Expected(
        outputs={"value": Quantity(value=value, error=error)},
        gradients={"logits": Quantity(value=gradient, error=spread / settings["temperature"])},
    )


def _expect_entropy(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    logits = inputs["logits"]
    value, gradient = oracles.entropy(logits, **settings)
    # Each p log p is off by p·(1 + |log p|)·error; Σ p = 1 and |log p| < 1 + size where p matters.
    error = _log_softmax_error(logits, settings["temperature"], eps) * (2 + value + np.log(logits.shape[-1]))
    spread = np.broadcast_to(error[..., None], logits.shape)
    return Expected(
        outputs={"value": Quantity(value=value, error=error)},
        gradients={"logits": Quantity(value=gradient, error=3 * spread / settings["temperature"])},
    )


_APART = (0.0, 0.1, -0.1, 0.5, -0.5, 2.0, -2.0, 30.0, -30.0, 200.0, -200.0)  # exp(200) overflows all but float64


@st.composite
def policy_pairs(draw: st.DrawFn) -> tuple[int, int, list[list[float]], list[list[float]]]:
    """Log-probs of two policies: most often close, sometimes so far apart that their ratio overflows."""
    rows, columns = draw(shapes(3, 6))
    first = draw(table(rows, columns, st.floats(-8.0, 0.0, width=32)))
    apart = st.one_of(st.sampled_from(_APART), numbers(0.5))
    second = [[one - draw(apart) for one in row] for row in first]
    return rows, columns, first, second


@st.composite
def _kl_inputs(draw: st.DrawFn, *, bounded: bool) -> dict[str, Any]:
    rows, columns, log_probs, reference = draw(policy_pairs())
    settings = {"log_ratio_bound": LOG_RATIO_BOUND} if bounded else {}
    inputs = {"log_probs": log_probs, "reference": reference}
    return {"shape": [rows, columns], "settings": settings, "inputs": inputs}


def _expect_kl(kind: str) -> Expect:
    def expect(inputs: Arrays, settings: Settings, eps: float) -> Expected:
        bound = settings.get("log_ratio_bound", LOG_RATIO_BOUND)
        log_probs, reference = inputs["log_probs"], inputs["reference"]
        value, gradient = oracles.kl(kind, log_probs, reference, log_ratio_bound=bound)
        size = np.abs(log_probs - reference)
        if kind == "k3":
            grown = np.exp(np.clip(reference - log_probs, -bound, bound))
            error = 4 * eps * (size * grown + size)  # exp turns an error of its argument into one of its value
        else:
            error = 4 * eps * np.maximum(np.abs(value), size)
        slope = 4 * eps * (1 + size) * np.maximum(np.abs(gradient), 1.0)
        at_a_kink = (kind == "abs") & (size == 0) | (kind == "k3") & (np.abs(size - bound) <= 4 * eps * bound)
        return Expected(
            outputs={"value": Quantity(value=value, error=error)},
            gradients={"log_probs": Quantity(value=gradient, error=np.where(at_a_kink, ANYTHING, slope))},
        )

    return expect


FUNCTIONS = {
    "log_probs.token": Function(inputs=_logits(with_tokens=True), expect=_expect_token_log_probs),
    "log_probs.entropy": Function(inputs=_logits(with_tokens=False), expect=_expect_entropy),
    **{
        f"kl.{kind}": Function(inputs=_kl_inputs(bounded=kind == "k3"), expect=_expect_kl(kind))
        for kind in ("k1", "k2", "k3", "abs")
    },
}
