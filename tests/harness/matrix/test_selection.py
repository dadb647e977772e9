"""A selection names what exists, or is refused with the nearest name; to select nothing is not a success."""

from __future__ import annotations

import pytest

from harness.errors import ExitCode, NothingMeasuredError, RequestError
from harness.matrix.expand import expand
from harness.matrix.load import load_catalogue, load_suite
from harness.matrix.selection import Selection, select_cases, select_cells

CATALOGUE = load_catalogue()
SMOKE = expand(load_suite("smoke"), CATALOGUE)
CASES = ("rollout.empty-sequence", "rollout.logprob-agrees", "loss.matches-oracle")


def chosen(**selection: object) -> list[str]:
    return [placed.cell.id for placed in select_cells(SMOKE, Selection(**selection), CATALOGUE)]  # type: ignore[arg-type]


def test_nothing_named_selects_the_whole_suite_in_its_order() -> None:
    assert chosen() == [placed.cell.id for placed in SMOKE.cells]


def test_names_on_one_axis_add_up_and_axes_must_all_hold() -> None:
    found = chosen(axes={"model": ["qwen3", "gemma4"], "algorithm": ["grpo"], "topology": ["dp1"]})
    assert found == ["cpu/qwen3/grpo/sync/native/dp1", "cpu/gemma4/grpo/sync/native/dp1"]


def test_a_glob_over_ids_crosses_slashes() -> None:
    assert chosen(cells=["*qwen3.5/*rpo*"]) == ["cpu/qwen3.5/grpo/sync/native/dp1"]
    assert chosen(cells=["*/dp2"], axes={"model": ["qwen3"]}) == ["cpu/qwen3/grpo/sync/native/dp2"]


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        ({"axes": {"hardware": ["cpuu"]}}, 'unknown hardware "cpuu"; did you mean "cpu"?'),
        ({"axes": {"model": ["qwen3", "gemma5"]}}, 'unknown model "gemma5"; did you mean "gemma4"?'),
        ({"axes": {"algorithm": ["grop"]}}, 'unknown algorithm "grop"; did you mean "grpo"?'),
        ({"axes": {"mode": ["async"]}}, 'unknown mode "async"; did you mean "sync"?'),
        ({"axes": {"engine": ["nativ"]}}, 'unknown engine "nativ"; did you mean "native"?'),
        ({"axes": {"topology": ["tp2"]}}, 'unknown topology "tp2"; write dp1, dp2, …'),
        ({"cells": ["cpu/qwen3/grop/sync/native/dp1"]}, 'did you mean "cpu/qwen3/grpo/sync/native/dp1"?'),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(selection: dict, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        chosen(**selection)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        ({"axes": {"topology": ["dp4"]}}, "--topology dp4"),
        ({"axes": {"model": ["gemma4"], "topology": ["dp2"]}}, "--model gemma4 --topology dp2"),
        ({"cells": ["mi300x/*"]}, "--cell mi300x/*"),
        ({"cells": ["cpu/gemma4/grpo/sync/native/dp2"]}, "leaves cell cpu/gemma4/grpo/sync/native/dp2 out: one model"),
    ],
)
def test_real_names_that_leave_no_cell_measure_nothing(selection: dict, says: str) -> None:
    with pytest.raises(NothingMeasuredError) as caught:
        chosen(**selection)
    assert says in str(caught.value)
    assert caught.value.exit_code == ExitCode.NOTHING_MEASURED


def test_cases_are_selected_by_glob_in_their_own_order() -> None:
    assert select_cases(CASES, ["loss.*", "rollout.e*"]) == ("rollout.empty-sequence", "loss.matches-oracle")
    assert select_cases(CASES, []) == CASES


def test_an_unknown_case_is_refused_and_an_empty_glob_measures_nothing() -> None:
    with pytest.raises(RequestError, match=r'did you mean "loss\.matches-oracle"'):
        select_cases(CASES, ["loss.match-oracle"])
    with pytest.raises(NothingMeasuredError, match=r"no case matches memory\.\*"):
        select_cases(CASES, ["memory.*"])
