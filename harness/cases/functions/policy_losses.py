"""Losses of the policy: PPO with one and two bounds, GSPO, CISPO; each with and without weights of a correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases import oracles
from harness.cases.functions.base import (
    ANYTHING,
    LOG_RATIO_BOUND,
    Arrays,
    Expected,
    Function,
    Quantity,
    Settings,
)
from harness.cases.functions.log_probs import policy_pairs
from harness.cases.tolerances import smallest_normal
from harness.strategies import masks, numbers, table

_CLOSE = st.sampled_from([0.3, -0.3, 0.1, -0.7, 0.5])


@st.composite
def _inputs(
    draw: st.DrawFn, *, low: tuple[float, ...], high: tuple[float, ...], dual: bool = False, by_row: bool = False
) -> dict[str, Any]:
    rows, columns, log_probs, old = draw(policy_pairs())
    if by_row and draw(st.sampled_from([True, True, True, False])):
        # One far-off token decides the mean of its row: most rows should have none.
        old = [[one - draw(_CLOSE) for one in row] for row in log_probs]
    settings = {"clip_low": draw(st.sampled_from(low)), "clip_high": draw(st.sampled_from(high))}
    if dual:
        settings["dual_clip"] = draw(st.sampled_from([3.0, 1.25, 5.0]))
    inputs = {
        "log_probs": log_probs,
        "old_log_probs": old,
        "advantages": draw(table(rows, columns, st.one_of(st.sampled_from([1.0, -1.0, 0.0]), numbers(10.0)))),
        "mask": draw(masks(rows, columns)),
    }
    if draw(st.booleans()):
        inputs["weights"] = draw(table(rows, columns, st.sampled_from([1.0, 0.0, 2.0, 0.75])))
    return {"shape": [rows, columns], "settings": {**settings, "log_ratio_bound": LOG_RATIO_BOUND}, "inputs": inputs}


@dataclass(frozen=True, kw_only=True)
class _Cleaned:
    """Inputs with 0 where masked, and what rounding can do to a loss that is made of their ratio."""

    new: np.ndarray
    old: np.ndarray
    advantages: np.ndarray
    mask: np.ndarray
    weights: np.ndarray
    approx_kl: Quantity
    eps: float

    @staticmethod
    def of(inputs: Arrays, *, bound: float, eps: float) -> _Cleaned:
        counted = inputs["mask"] > 0
        new, old, advantages = (
            np.where(counted, inputs[name], 0.0) for name in ("log_probs", "old_log_probs", "advantages")
        )
        weights = np.where(counted, inputs["weights"], 0.0) if "weights" in inputs else np.ones(counted.shape)
        approx_kl, _ = oracles.kl("k3", old, new, log_ratio_bound=bound)
        size = np.minimum(np.abs(new - old), bound)
        grown = np.exp(np.clip(new - old, -bound, bound))
        return _Cleaned(
            new=new,
            old=old,
            advantages=advantages,
            mask=inputs["mask"],
            weights=weights,
            approx_kl=Quantity(value=approx_kl, error=4 * eps * size * (1 + grown)),
            eps=eps,
        )

    def lost(self, ratio: np.ndarray) -> np.ndarray:
        """Where ratio times advantage is too small to be compared."""
        size = np.abs(self.advantages) * np.minimum(ratio, 1)
        return (self.advantages != 0) & (size < smallest_normal("float32") / self.eps)

    def expected(
        self,
        loss: np.ndarray,
        gradient: np.ndarray,
        *,
        off: np.ndarray,
        undecided: np.ndarray,
        kinks: np.ndarray,
        fractions: Mapping[str, np.ndarray],
    ) -> Expected:
        """Loss and gradient that are `off` relatively, fractions that are exact but where they are `undecided`."""
        weighted = {"value": loss * self.weights, "gradient": gradient * self.weights}
        off = off + 2 * self.eps
        return Expected(
            outputs={
                "value": Quantity(value=weighted["value"], error=off * np.abs(weighted["value"])),
                "approx_kl": self.approx_kl,
                **{
                    name: Quantity(value=where.astype(np.float64), error=np.where(undecided, ANYTHING, 0.0))
                    for name, where in fractions.items()
                },
            },
            gradients={
                "log_probs": Quantity(
                    value=weighted["gradient"],
                    error=np.where(kinks, ANYTHING, off * np.abs(weighted["gradient"])),
                )
            },
        )


def _near(ratio: np.ndarray, off: np.ndarray, *edges: float) -> np.ndarray:
    """Where rounding decides on which side of an edge the ratio lies."""
    return np.logical_or.reduce([np.abs(ratio - edge) <= off * ratio for edge in edges])


def _expect_ppo(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    bound, dual = settings["log_ratio_bound"], settings.get("dual_clip")
    x = _Cleaned.of(inputs, bound=bound, eps=eps)
    bounds = {"low": settings["clip_low"], "high": settings["clip_high"], "log_ratio_bound": bound}
    loss, gradient, clipped = oracles.ppo_clip(x.new, x.old, x.advantages, **bounds)
    fractions = {"clip_fraction": clipped}
    edges = [1 - bounds["low"], 1 + bounds["high"]]
    if dual is not None:
        loss, gradient, fractions["dual_clip_fraction"] = oracles.dual_clip(
            x.new, x.old, x.advantages, **bounds, dual=dual
        )
        edges.append(dual)
    log_ratio = x.new - x.old
    ratio = np.exp(np.clip(log_ratio, -bound, bound))
    off = 4 * eps * (2 + np.minimum(np.abs(log_ratio), bound))  # relative error of the ratio
    undecided = _near(ratio, off, *edges) | x.lost(ratio)
    at_the_bound = np.abs(np.abs(log_ratio) - bound) <= 4 * eps * bound
    return x.expected(loss, gradient, off=off, undecided=undecided, kinks=undecided | at_the_bound, fractions=fractions)


def _expect_gspo(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    bound = settings["log_ratio_bound"]
    x = _Cleaned.of(inputs, bound=bound, eps=eps)
    low, high = settings["clip_low"], settings["clip_high"]
    loss, gradient, clipped = oracles.gspo(
        x.new, x.old, x.advantages, x.mask, low=low, high=high, log_ratio_bound=bound
    )
    lengths = np.maximum(x.mask.sum(axis=1, keepdims=True), 1)
    log_s = (x.new - x.old).sum(axis=1, keepdims=True) / lengths
    # Terms of either sign: the mean of so many is off by the size of them, not by its own. Summed apart, as the two
    # sequences' log-probs, the terms are the log-probs themselves.
    size = (np.abs(x.new) + np.abs(x.old)).sum(axis=1, keepdims=True) / lengths
    summed = 2 * eps * (x.mask.shape[1] + 2) * size
    s = np.exp(np.clip(log_s, -bound, bound)) * np.ones(x.mask.shape)
    off = (2 * summed + 4 * eps * (2 + np.minimum(np.abs(log_s), bound))) * np.ones(x.mask.shape)
    undecided = _near(s, off, 1 - low, 1 + high) | x.lost(s)
    at_the_bound = np.abs(np.abs(log_s) - bound) <= summed + 4 * eps * bound
    return x.expected(
        loss,
        gradient,
        off=off,
        undecided=undecided,
        kinks=undecided | at_the_bound,
        fractions={"clip_fraction": clipped},
    )


def _expect_cispo(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    bound, low, high = settings["log_ratio_bound"], settings["clip_low"], settings["clip_high"]
    x = _Cleaned.of(inputs, bound=bound, eps=eps)
    loss, gradient, clipped = oracles.cispo(x.new, x.old, x.advantages, low=low, high=high, log_ratio_bound=bound)
    log_ratio = x.new - x.old
    ratio = np.exp(np.clip(log_ratio, -bound, bound))
    off = 4 * eps * (2 + np.minimum(np.abs(log_ratio), bound))
    return x.expected(
        loss,
        gradient,
        off=off,
        undecided=_near(ratio, off, 1 - low, 1 + high),
        kinks=np.zeros(ratio.shape, dtype=bool),  # the clip is of a weight: the loss is linear in the log-prob
        fractions={"clip_fraction": clipped & (x.mask > 0)},
    )


_CLIPS = (0.2, 0.1, 0.28, 0.0)

FUNCTIONS = {
    "policy_loss.ppo_clip": Function(inputs=_inputs(low=_CLIPS, high=_CLIPS), expect=_expect_ppo),
    "policy_loss.ppo_dual_clip": Function(inputs=_inputs(low=_CLIPS, high=_CLIPS, dual=True), expect=_expect_ppo),
    "policy_loss.gspo": Function(
        inputs=_inputs(low=(3e-4, 0.2, 0.9), high=(4e-4, 0.2, 2.0), by_row=True), expect=_expect_gspo
    ),
    "policy_loss.cispo": Function(inputs=_inputs(low=(1.0, 0.2, 0.0), high=(0.2, 2.0, 4.0)), expect=_expect_cispo),
}
