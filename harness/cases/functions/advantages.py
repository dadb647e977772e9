"""Advantages: with a critic, from differences within a group, from a baseline, from the rewards alone."""

from __future__ import annotations

from collections.abc import Callable
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
def _group_inputs(draw: st.DrawFn, *, conventions: tuple[str, ...] = ()) -> dict[str, Any]:
    ids = draw(st.lists(st.one_of(st.integers(-2, 2), st.integers(-(2**40), 2**40)), min_size=1, max_size=3))
    groups = draw(st.lists(st.sampled_from(ids), max_size=9))
    equal = draw(st.booleans())
    scores = st.just(draw(_SCORES)) if equal else _SCORES
    drawn = {
        **draw(_DEVIATION),
        "divide_by_std": draw(st.sampled_from([True, True, False])),
        "singleton": draw(st.sampled_from(["zero", "score"])),
    }
    settings = {name: drawn[name] for name in conventions}
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


def _expect_rloo(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    return _difference_from_a_mean(inputs, oracles.rloo, settings, eps)


def _expect_reinforce_pp_baseline(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    def oracle(scores: np.ndarray, groups: list[int], *, singleton: str) -> np.ndarray:
        return oracles.group_advantages(scores, groups, ddof=1, eps=0.0, divide_by_std=False, singleton=singleton)

    return _difference_from_a_mean(inputs, oracle, settings, eps)


def _difference_from_a_mean(
    inputs: Arrays, oracle: Callable[..., np.ndarray], settings: Settings, eps: float
) -> Expected:
    """Off by what a mean is off, which counts n / (n - 1) <= 2 fold in RLOO; equal scores give exactly 0."""
    scores, groups = inputs["scores"], inputs["groups"].astype(np.int64).tolist()
    value = oracle(scores, groups, **settings)
    error = np.zeros_like(value)
    for group in set(groups):
        rows = [row for row, other in enumerate(groups) if other == group]
        if not np.all(scores[rows] == scores[rows[0]]):
            error[rows] = 2 * eps * ((len(rows) + 4) * np.abs(scores[rows]).max() + np.abs(value[rows]))
    return Expected(outputs={"value": Quantity(value=value, error=error)})


@st.composite
def _reinforce_pp_inputs(draw: st.DrawFn) -> dict[str, Any]:
    rows, columns = draw(shapes(3, 8))
    unit = st.one_of(st.sampled_from([1.0, -2.0, 0.0]), numbers(10.0))
    holes = table(rows, columns, st.integers(0, 1))  # what is masked must not be discounted for
    inputs = {"rewards": draw(table(rows, columns, unit)), "mask": draw(st.one_of(holes, masks(rows, columns)))}
    settings = {"gamma": draw(st.sampled_from([0.5, 0.95, 0.9, 0.5, 1.0, 0.0]))}
    return {"shape": [rows, columns], "settings": settings, "inputs": inputs}


def _expect_reinforce_pp(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    value, terms = oracles.reinforce_pp(inputs["rewards"], inputs["mask"], **settings)
    return Expected(outputs={"value": Quantity(value=value, error=eps * (2 * value.shape[1] + 4) * terms)})


@st.composite
def _remax_inputs(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(0, 8))
    scores = draw(st.lists(_SCORES, min_size=count, max_size=count))
    inputs = {"scores": scores, "baselines": [draw(st.one_of(st.just(score), _SCORES)) for score in scores]}
    return {"shape": [count], "settings": {}, "inputs": inputs}


def _expect_remax(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    value = oracles.remax(inputs["scores"], inputs["baselines"])
    return Expected(outputs={"value": Quantity(value=value, error=2 * eps * np.abs(value))})


@st.composite
def _signal_inputs(draw: st.DrawFn) -> dict[str, Any]:
    """Few groups of several rows and two scores: many a group has a signal in its middle alone."""
    groups = draw(st.lists(st.sampled_from([3, -1]), max_size=9))
    scores = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(groups), max_size=len(groups)))
    return {"shape": [len(groups)], "settings": {}, "inputs": {"scores": scores, "groups": groups}}


def _expect_informative_rows(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    rows = oracles.informative_rows(inputs["scores"], inputs["groups"].astype(np.int64).tolist())
    return Expected(outputs={"value": Quantity(value=np.array(rows, dtype=np.float64), error=np.zeros(len(rows)))})


FUNCTIONS = {
    "advantage.gae": Function(inputs=_gae_inputs(), expect=_expect_gae),
    "advantage.whiten": Function(inputs=_whiten_inputs(), expect=_expect_whiten),
    "advantage.group": Function(
        inputs=_group_inputs(conventions=("std_ddof", "std_eps", "divide_by_std", "singleton")), expect=_expect_group
    ),
    "advantage.rloo": Function(inputs=_group_inputs(conventions=("singleton",)), expect=_expect_rloo),
    "advantage.reinforce_pp": Function(inputs=_reinforce_pp_inputs(), expect=_expect_reinforce_pp),
    "advantage.reinforce_pp_baseline": Function(
        inputs=_group_inputs(conventions=("singleton",)), expect=_expect_reinforce_pp_baseline
    ),
    "advantage.remax": Function(inputs=_remax_inputs(), expect=_expect_remax),
    "advantage.degenerate_groups": Function(inputs=_group_inputs(), expect=_expect_degenerate_groups),
    "advantage.keep_informative": Function(
        inputs=st.one_of(_signal_inputs(), _group_inputs()), expect=_expect_informative_rows
    ),
}
