"""What multiplies a token's loss or is taken from a reward: off-policy weights, overlong shaping, KL in the reward."""

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
from harness.cases.functions.log_probs import policy_pairs
from harness.strategies import masks, numbers, shapes, table


@st.composite
def _weights_inputs(draw: st.DrawFn, *, kind: str) -> dict[str, Any]:
    rows, columns, old, rollout = draw(policy_pairs())
    floors = [0.0, 0.5, 0.9] if kind.endswith("_mask") else [0.0]
    return {
        "shape": [rows, columns],
        "settings": {
            "cap": draw(st.sampled_from([2.0, 1.0, 1.5, 5.0])),
            "floor": draw(st.sampled_from(floors)),
            "log_ratio_bound": LOG_RATIO_BOUND,
        },
        "inputs": {"old_log_probs": old, "rollout_log_probs": rollout, "mask": draw(masks(rows, columns))},
    }


def _expect_weights(kind: str) -> Expect:
    def expect(inputs: Arrays, settings: Settings, eps: float) -> Expected:
        mask, bound = inputs["mask"], settings["log_ratio_bound"]
        old, rollout = (np.where(mask > 0, inputs[name], 0.0) for name in ("old_log_probs", "rollout_log_probs"))
        weights, cut = oracles.importance_weights(old, rollout, mask, kind, **settings)
        log_ratio, size = old - rollout, np.abs(old - rollout)
        if kind.startswith("sequence_"):
            size = (np.abs(old) + np.abs(rollout)).sum(axis=1, keepdims=True) * (mask.shape[1] + 2)
            log_ratio = log_ratio.sum(axis=1, keepdims=True)
        ratio = np.exp(np.clip(log_ratio, -bound, bound)) * np.ones(mask.shape)
        off = 4 * eps * (2 + size + np.minimum(np.abs(log_ratio), bound)) * np.ones(mask.shape)
        edges = [settings["cap"], settings["floor"]] if kind.endswith("_mask") else [settings["cap"]]
        undecided = np.logical_or.reduce([np.abs(ratio - edge) <= off * ratio for edge in edges])
        if kind == "none":
            off, undecided = np.zeros(mask.shape), np.zeros(mask.shape, dtype=bool)
        jumps = undecided & kind.endswith("_mask")  # a cut weight is continuous at the cap
        weight = Quantity(value=weights, error=np.where(jumps, ANYTHING, off * weights))
        fraction = Quantity(value=cut.astype(np.float64), error=np.where(undecided, ANYTHING, 0.0))
        return Expected(
            outputs={"value": weight, "correction_weight": weight, "correction_fraction": fraction},
        )

    return expect


@st.composite
def _overlong_inputs(draw: st.DrawFn) -> dict[str, Any]:
    max_length = draw(st.sampled_from([32, 1, 7]))
    enabled = draw(st.sampled_from([True, True, True, False]))
    sizes = st.integers(1, max_length) if enabled else st.sampled_from([0, -1, max_length + 1])
    lengths = draw(st.lists(st.integers(0, max_length), max_size=8))
    return {
        "shape": [len(lengths)],
        "settings": {
            "max_length": max_length,
            "buffer": draw(st.one_of(sizes, sizes, sizes, st.none())),
            "factor": draw(st.sampled_from([1.0, 0.5, 3.0])),
            "enabled": enabled,
        },
        "inputs": {"lengths": lengths},
    }


def _expect_overlong(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    value = oracles.overlong_penalty(inputs["lengths"], **settings)
    return Expected(outputs={"value": Quantity(value=value, error=4 * eps * np.abs(value))})


@st.composite
def _kl_reward_inputs(draw: st.DrawFn) -> dict[str, Any]:
    rows, columns = draw(shapes(3, 6))
    return {
        "shape": [rows, columns],
        "settings": {"coefficient": draw(st.sampled_from([0.1, 1.0, 0.0]))},
        "inputs": {
            "rewards": draw(table(rows, columns, st.one_of(st.sampled_from([0.0, 0.0, 1.0]), numbers(10.0)))),
            "kl": draw(table(rows, columns, numbers(10.0))),
            "mask": draw(masks(rows, columns)),
        },
    }


def _expect_kl_reward(inputs: Arrays, settings: Settings, eps: float) -> Expected:
    rewards, kl, mask = inputs["rewards"], inputs["kl"], inputs["mask"]
    value = oracles.kl_penalised_rewards(rewards, kl, mask, **settings)
    size = np.where(mask > 0, np.abs(rewards) + settings["coefficient"] * np.abs(kl), 0.0)
    return Expected(outputs={"value": Quantity(value=value, error=2 * eps * size)})


FUNCTIONS = {
    **{
        f"correction.{kind}": Function(inputs=_weights_inputs(kind=kind), expect=_expect_weights(kind))
        for kind in ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
    "reward.overlong": Function(inputs=_overlong_inputs(), expect=_expect_overlong),
    "reward.kl_penalised": Function(inputs=_kl_reward_inputs(), expect=_expect_kl_reward),
}
