"""Loss of the critic, and how token losses become one number."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases import oracles
from harness.cases.functions.base import (
    ANYTHING,
    Arrays,
    Expect,
    Expected,
    Function,
    Quantity,
    Settings,
)
from harness.strategies import masks, numbers, shapes, table


@st.composite
def _value_inputs(draw: st.DrawFn) -> dict[str, Any]:
    rows, columns = draw(shapes(3, 6))
    unit = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), numbers(1.0), numbers(100.0))
    apart = st.one_of(st.just(0.0), numbers(0.25), numbers(0.25), numbers(100.0))
    values = draw(table(rows, columns, unit))
    return {
        "shape": [rows, columns],
        "settings": {"value_clip": draw(st.sampled_from([0.2, 0.5, None]))},
        "inputs": {
            "values": values,
            "old_values": [[value + draw(apart) for value in row] for row in values],
            "returns": draw(table(rows, columns, unit)),
            "mask": draw(masks(rows, columns)),
        },
    }


def _expect_value(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    counted = inputs["mask"] > 0
    values, old, returns = (np.where(counted, inputs[name], 0.0) for name in ("values", "old_values", "returns"))
    clip = settings["value_clip"]
    value, gradient, taken = oracles.clipped_value_loss(values, old, returns, clip=clip)
    size = np.abs(values) + np.abs(old) + np.abs(returns) + (clip or 0.0)
    distance = np.sqrt(2 * value)
    error = 4 * eps * size * (distance + eps * size)
    undecided = np.zeros_like(taken)
    if clip is not None:
        other = (old + np.clip(values - old, -clip, clip) - returns) ** 2 / 2
        outside = np.abs(values - old) >= clip - 4 * eps * (size + clip)
        undecided = outside & (np.abs((values - returns) ** 2 / 2 - other) <= 2 * error)
    return Expected(
        outputs={
            "value": Quantity(value=value, error=error),
            "value_clip_fraction": Quantity(value=taken.astype(np.float64), error=np.where(undecided, ANYTHING, 0.0)),
        },
        gradients={"values": Quantity(value=gradient, error=np.where(undecided, ANYTHING, 4 * eps * size))},
    )


@st.composite
def _aggregate_inputs(draw: st.DrawFn, *, mode: str) -> dict[str, Any]:
    rows, columns = draw(shapes(4, 6))
    settings: dict[str, Any] = {"empty_row": draw(st.sampled_from(["left_out", "counted"]))}
    if mode == "seq_mean_token_sum_norm":
        settings["horizon"] = draw(st.sampled_from([None, 1, 7]))
    inputs = {"values": draw(table(rows, columns, numbers(100.0))), "mask": draw(masks(rows, columns))}
    return {"shape": [rows, columns], "settings": settings, "inputs": inputs}


def _expect_aggregate(mode: str) -> Expect:
    def expect(inputs: Arrays, settings: Settings, eps: float) -> Expected:
        mask = inputs["mask"]
        weights = oracles.aggregation_weights(
            mask, mode, empty_row=settings["empty_row"], horizon=settings.get("horizon")
        )
        terms = weights * np.where(mask > 0, inputs["values"], 0.0)
        error = eps * (mask.size + 4) * np.abs(terms).sum()
        return Expected(
            outputs={"value": Quantity(value=terms.sum(), error=error)},
            gradients={"values": Quantity(value=weights, error=4 * eps * weights)},
        )

    return expect


FUNCTIONS = {
    "value_loss.clipped": Function(inputs=_value_inputs(), expect=_expect_value),
    **{
        f"aggregate.{mode}": Function(inputs=_aggregate_inputs(mode=mode), expect=_expect_aggregate(mode))
        for mode in ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")
    },
}
