"""A suite spelt out: every combination is a cell or left out with a reason, and settings come in layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import RequestError
from harness.matrix.cell import AXES
from harness.matrix.expand import Expansion, expand
from harness.matrix.load import load_catalogue, load_suite
from harness.matrix.merge import merged

VALUES = {
    "hardware": ["cpu"],
    "model": ["qwen3", "qwen3.5", "gemma4"],
    "algorithm": ["ppo", "grpo"],
    "mode": ["sync"],
    "engine": ["native"],
    "topology": ["dp1", "dp2", "dp4"],
}
CATALOGUE = load_catalogue()

some_of = {axis: st.lists(st.sampled_from(values), min_size=1, unique=True) for axis, values in VALUES.items()}
blocks = st.lists(st.fixed_dictionaries(some_of), min_size=1, max_size=3)


@st.composite
def suites(draw: st.DrawFn) -> dict:
    """Blocks, and exclusions that each match at least one of their combinations."""
    combine = draw(blocks)
    points = [dict(zip(AXES, point, strict=True)) for b in combine for point in product(*(b[axis] for axis in AXES))]
    rules = []
    for _ in range(draw(st.integers(0, 3))):
        point = draw(st.sampled_from(points))
        axes = draw(st.lists(st.sampled_from(AXES), min_size=1, unique=True))
        rules.append({"match": {axis: point[axis] for axis in axes}, "reason": f"reason {len(rules)}"})
    return {"suite": "drawn", "description": "drawn", "combine": combine, "exclude": rules}


@settings(deadline=None)
@given(suites())
def test_every_combination_is_a_cell_or_left_out_with_a_reason(
    tmp_path_factory: pytest.TempPathFactory, suite: dict
) -> None:
    path = tmp_path_factory.mktemp("suite") / "drawn.yaml"
    path.write_text(json.dumps(suite), encoding="utf-8")  # JSON is YAML
    result = expand(load_suite(str(path)), CATALOGUE)

    ids = [placed.cell.id for placed in result.cells]
    reasons = {one.cell: one.reason for one in result.excluded}
    assert len(ids) == len(set(ids))
    assert not set(ids) & set(reasons)
    asked = {"/".join(point) for b in suite["combine"] for point in product(*(b[axis] for axis in AXES))}
    assert set(ids) | set(reasons) == asked

    for cell_id, reason in reasons.items():
        values = dict(zip(AXES, cell_id.split("/"), strict=True))
        rule = suite["exclude"][int(reason.removeprefix("reason "))]
        assert all(values[axis] == value for axis, value in rule["match"].items())
    for placed in result.cells:
        values = {axis: getattr(placed.cell, axis) for axis in AXES}
        assert not any(all(values[a] == v for a, v in rule["match"].items()) for rule in suite["exclude"])
        assert placed.cell.devices == int(placed.cell.topology.removeprefix("dp"))


def test_the_smoke_suite_is_the_one_that_is_promised() -> None:
    smoke = expand(load_suite("smoke"), CATALOGUE)
    ids = {placed.cell.id for placed in smoke.cells}
    trained = [name for name, model in CATALOGUE.models.items() if "tiny" in model.sizes]
    assert len(trained) == 14, "every family with a drafter and without"
    for model, algorithm in product(trained, ("ppo", "grpo", "dapo", "distillation")):
        assert f"cpu/{model}/{algorithm}/sync/native/dp1" in ids
    for algorithm in CATALOGUE.algorithms:
        assert f"cpu/qwen3/{algorithm}/sync/native/dp1" in ids
    assert "cpu/qwen3/grpo/sync/native/dp2" in ids
    learning = {placed.cell.algorithm: placed.cell.learn for placed in smoke.cells if placed.cell.learn}
    assert set(learning) == {"ppo", "grpo"}
    assert all(len(rule["seeds"]) >= 3 and 0.5 < rule["confidence"] < 1 for rule in learning.values())
    assert {placed.cell.size for placed in smoke.cells} == {"tiny"}


Expanded = Callable[..., Expansion]


def test_settings_are_layered_defaults_model_algorithm_block(expanded: Expanded) -> None:
    result = expanded(
        one="""
defaults: {hardware: cpu, settings: {steps: 3, model: {init_std: 9.0}, optimizer: {lr: 9.0, weight_decay: 0.5}}}
combine: [{model: qwen3, algorithm: grpo, settings: {algorithm: {group_size: 4}}}]
"""
    )
    settings = result.cells[0].cell.settings
    assert settings["steps"] == 3
    assert settings["model"]["init_std"] == 0.05, "the model's entry is stronger than the defaults"
    assert settings["optimizer"]["lr"] < 9.0, "the algorithm's entry is stronger than the defaults"
    assert settings["optimizer"]["weight_decay"] == 0.5, "merged key by key"
    assert settings["algorithm"] == {"advantage": "grpo", "group_size": 4}, "the block is strongest"


def test_where_a_setting_comes_from_is_known(expanded: Expanded, matrices: Path) -> None:
    placed = expanded(
        one="""defaults: {hardware: cpu}
combine:
  - model: qwen3
    algorithm: grpo
    settings:
      rollout: {max_tokens: 5}
      optimizer: {lr: 1e-3}
"""
    ).cells[0]
    assert placed.where == f"{matrices}/one.yaml:5"
    assert placed.where_setting("rollout.max_tokens") == f"{matrices}/one.yaml:8"
    assert placed.where_setting("optimizer.lr") == f"{matrices}/one.yaml:9", "the strongest layer that has it"
    assert placed.where_setting("rollout.top_k") is None
    lines = (matrices / "algorithms.yaml").read_text().splitlines()
    grpo = next(i for i, text in enumerate(lines) if text == "grpo:")
    line = next(i for i, text in enumerate(lines, 1) if i > grpo and "group_size" in text)
    assert placed.where_setting("algorithm.group_size") == f"{matrices}/algorithms.yaml:{line}"
    where_std = placed.where_setting("model.init_std")
    assert where_std is not None
    assert where_std.startswith(f"{matrices}/models.yaml:")


INNER = "defaults: {hardware: cpu, topology: dp2}\ncombine: [{model: [qwen3, gemma4], algorithm: grpo}]\n"


def test_an_included_suite_brings_its_cells_and_the_outer_rules_apply_to_them(expanded: Expanded) -> None:
    result = expanded(
        inner=INNER,
        outer="""
include: [inner]
cells: [{hardware: cpu, model: qwen3, algorithm: ppo}]
exclude: [{match: {model: gemma4}, reason: slow}]
learn: [{match: {topology: dp2}, seeds: [1, 2, 3], confidence: 0.9, steps: 4}]
""",
    )
    assert [placed.cell.id for placed in result.cells] == [
        "cpu/qwen3/grpo/sync/native/dp2",
        "cpu/qwen3/ppo/sync/native/dp1",
    ]
    assert [(one.cell, one.reason) for one in result.excluded] == [("cpu/gemma4/grpo/sync/native/dp2", "slow")]
    assert result.cells[0].cell.learn == {"seeds": [1, 2, 3], "confidence": 0.9, "steps": 4, "min_gain": 0.0}
    assert result.cells[1].cell.learn is None


def test_the_same_cell_asked_for_twice_is_one_cell(expanded: Expanded) -> None:
    assert len(expanded(inner=INNER, outer="include: [inner, inner]\n" + INNER).cells) == 2


def test_what_an_included_suite_leaves_out_may_be_asked_for_again(expanded: Expanded) -> None:
    result = expanded(
        inner=INNER + "exclude: [{match: {model: gemma4}, reason: slow}]\n",
        outer="include: [inner]\ncells: [{hardware: cpu, model: gemma4, algorithm: grpo, topology: dp2}]\n",
    )
    assert "cpu/gemma4/grpo/sync/native/dp2" in {placed.cell.id for placed in result.cells}
    assert result.excluded == ()


def test_one_id_with_two_settings_is_refused_with_both_places(expanded: Expanded, matrices: Path) -> None:
    with pytest.raises(RequestError) as caught:
        expanded(
            one="""cells:
  - {hardware: cpu, model: qwen3, algorithm: ppo}
  - {hardware: cpu, model: qwen3, algorithm: ppo, settings: {steps: 2}}
"""
        )
    assert f"{matrices}/one.yaml:5" in str(caught.value)
    assert f"{matrices}/one.yaml:4" in str(caught.value)


def test_another_subject_than_the_reference_shows_in_the_id(expanded: Expanded) -> None:
    (placed,) = expanded(one="cells: [{subject: verl, hardware: cpu, model: qwen3, algorithm: ppo}]").cells
    assert placed.cell.id == "verl:cpu/qwen3/ppo/sync/native/dp1"


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


@settings(deadline=None)
@given(plain, plain)
def test_when_layers_merge_the_later_word_stands_and_the_rest_is_kept(low: dict, high: dict) -> None:
    result = merged(low, high)
    assert result.keys() == low.keys() | high.keys()
    for key, value in high.items():
        if not isinstance(value, dict):
            assert result[key] == value
        else:
            assert result[key] == merged(low[key] if isinstance(low.get(key), dict) else {}, value)
    assert all(result[key] == low[key] for key in low.keys() - high.keys())
    assert merged(result, high) == result
    assert merged({}, high) == high


def test_a_combination_by_the_billion_is_refused_at_once(expanded: Expanded) -> None:
    topologies = ", ".join(f"dp{n}" for n in range(1, 9000))
    block = f"{{hardware: cpu, model: [qwen3, gemma4], algorithm: [ppo, grpo], topology: [{topologies}]}}"
    with pytest.raises(RequestError, match="more than 20000 cells"):
        expanded(one=f"combine: [{block}]")
