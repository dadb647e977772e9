"""Advantages: GAE, whitening, differences within a group."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases import oracles
from harness.cases.functions.base import Arrays, Expected, Function, Quantity, Settings
from harness.strategies import masks, numbers, shapes, table


@st.composite
def _gae_inputs(draw: st.DrawFn) -> dict[str, Any]:
    rows, columns = draw(shapes(3, 8))
    unit = st.one_of(st.sampled_from([0.0, 0.0, 1.0]), numbers(10.0))
    part = st.sampled_from([1.0, 0.95, 0.5, 0.0])
    return {
        "shape": [rows, columns],
        "settings": {"gamma": draw(part), "lam": draw(part)},
        "inputs": {
            "rewards": draw(table(rows, columns, unit)),
            "values": draw(table(rows, columns, unit)),
            "mask": draw(masks(rows, columns)),
        },
    }


def _expect_gae(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    rewards, values, mask = inputs["rewards"], inputs["values"], inputs["mask"]
    advantages, returns, terms = oracles.gae(rewards, values, mask, **settings)
    error = eps * (3 * mask.shape[1] + 4) * (terms + np.abs(np.where(mask > 0, values, 0.0)))
    return Expected(
        outputs={"advantages": Quantity(value=advantages, error=error), "returns": Quantity(value=returns, error=error)}
    )


_SCORES = st.one_of(st.sampled_from([0.0, 1.0, 0.1, -1.0]), numbers(100.0, width=16))
_DEVIATION = st.fixed_dictionaries({"std_ddof": st.sampled_from([1, 0]), "std_eps": st.sampled_from([1e-6, 1e-4])})


def _standardised_error(x: np.ndarray, z: np.ndarray, settings: Settings, *, divide: bool, eps: float) -> np.ndarray:
    """x - mean is off by eps·n·max|x|, and so is the deviation, whose error counts |z| fold; equal numbers give 0."""
    if len(x) <= settings["std_ddof"] or np.all(x == x[0]):
        return np.zeros_like(x)
    shift = eps * (len(x) + 4) * np.abs(x).max()
    if not divide:
        return shift + 2 * eps * np.abs(z)
    return shift * (1 + np.abs(z)) / (x.std(ddof=settings["std_ddof"]) + settings["std_eps"]) + 8 * eps * np.abs(z)


@st.composite
def _whiten_inputs(draw: st.DrawFn) -> dict[str, Any]:
    rows, columns = draw(shapes(3, 5))
    inputs = {"values": draw(table(rows, columns, _SCORES)), "mask": draw(masks(rows, columns))}
    return {"shape": [rows, columns], "settings": draw(_DEVIATION), "inputs": inputs}


def _expect_whiten(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    counted = inputs["mask"] > 0
    x = inputs["values"][counted]
    z = oracles.standardise(x, ddof=settings["std_ddof"], eps=settings["std_eps"], divide_by_std=True)
    value, error = np.zeros(counted.shape), np.zeros(counted.shape)
    value[counted], error[counted] = z, _standardised_error(x, z, settings, divide=True, eps=eps)
    return Expected(outputs={"value": Quantity(value=value, error=error)})


@st.composite
def _group_inputs(draw: st.DrawFn, *, with_settings: bool) -> dict[str, Any]:
    ids = draw(st.lists(st.one_of(st.integers(-2, 2), st.integers(-(2**40), 2**40)), min_size=1, max_size=3))
    groups = draw(st.lists(st.sampled_from(ids), max_size=9))
    equal = draw(st.booleans())
    scores = st.just(draw(_SCORES)) if equal else _SCORES
    settings = (
        {
            **draw(_DEVIATION),
            "divide_by_std": draw(st.sampled_from([True, True, False])),
            "singleton": draw(st.sampled_from(["zero", "score"])),
        }
        if with_settings
        else {}
    )
    inputs = {"scores": draw(st.lists(scores, min_size=len(groups), max_size=len(groups))), "groups": groups}
    return {"shape": [len(groups)], "settings": settings, "inputs": inputs}


def _expect_group(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    scores, groups = inputs["scores"], inputs["groups"].astype(np.int64).tolist()
    divide = settings["divide_by_std"]
    value = oracles.group_advantages(
        scores,
        groups,
        ddof=settings["std_ddof"],
        eps=settings["std_eps"],
        divide_by_std=divide,
        singleton=settings["singleton"],
    )
    error = np.zeros_like(value)
    for group in set(groups):
        rows = [row for row, other in enumerate(groups) if other == group]
        error[rows] = _standardised_error(scores[rows], value[rows], settings, divide=divide, eps=eps)
    return Expected(outputs={"value": Quantity(value=value, error=error)})


def _expect_degenerate_groups(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    scores, groups = inputs["scores"], inputs["groups"].astype(np.int64)
    count = sum(len(set(scores[groups == group].tolist())) == 1 for group in set(groups.tolist()))
    return Expected(outputs={"value": Quantity(value=np.array(float(count)), error=np.array(0.0))})


FUNCTIONS = {
    "advantage.gae": Function(inputs=_gae_inputs(), expect=_expect_gae),
    "advantage.whiten": Function(inputs=_whiten_inputs(), expect=_expect_whiten),
    "advantage.group": Function(inputs=_group_inputs(with_settings=True), expect=_expect_group),
    "advantage.degenerate_groups": Function(
        inputs=_group_inputs(with_settings=False), expect=_expect_degenerate_groups
    ),
}
