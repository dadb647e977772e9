"""The plan: each case runs once for what it reads of a cell, and nothing is promised that cannot run here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cases.base import Case
from harness.errors import RequestError
from harness.hardware.probe import Finding
from harness.matrix.cell import AXES, Cell
from harness.matrix.plan import Plan, make_plan
from harness.matrix.selection import Selection
from harness.results.records import PlannedCase
from harness.results.vocabulary import Evidence, PlanState
from harness.subjects import registry
from harness.subjects.protocol import Capability


def case_reading(*read: str, name: str = "toy.case", only_topology: str | None = None) -> Case:
    class Toy(Case):
        id: ClassVar[str] = name
        origin: ClassVar[str] = "a test"
        axes: ClassVar[tuple[str, ...]] = read
        needs: ClassVar[frozenset[Capability]] = frozenset({Capability.TRAINING})

        def applies(self, cell: Cell) -> str:
            return "" if only_topology in (None, cell.topology) else f"needs {only_topology}"

    return Toy()


def plan_smoke(*cases: Case, selection: Selection | None = None, here: bool = True) -> Plan:
    finding = Finding(evidence=Evidence.DEVICE) if here else Finding(evidence=None, reason="switched off")
    return make_plan(
        "smoke", selection or Selection(), cases={case.id: case for case in cases}, probe=lambda platform: finding
    )


def by_cell(plan: Plan) -> Mapping[str, PlannedCase]:
    return {cell.cell: cell.cases[0] for cell in plan.cells}


@settings(deadline=None)
@given(st.lists(st.sampled_from(AXES), unique=True), st.sampled_from([None, "dp1", "dp2"]))
def test_a_case_runs_once_for_each_thing_it_reads(axes: list[str], only_topology: str | None) -> None:
    case = case_reading(*axes, only_topology=only_topology)
    plan = plan_smoke(case)
    runs: dict[tuple, str] = {}
    for cell_id, entry in by_cell(plan).items():
        cell = plan.by_id[cell_id]
        projection = cell.projection(case.axes)
        if only_topology not in (None, cell.topology):
            assert entry.state is PlanState.NOT_APPLICABLE
            assert entry.reason == f"needs {only_topology}"
        elif projection in runs:
            assert entry.state is PlanState.SHARED
            assert entry.shared_with == runs[projection]
            assert runs[projection] in entry.reason
        else:
            assert entry.state is PlanState.RUN
            runs[projection] = cell_id


def test_a_case_selected_in_one_cell_runs_there_even_if_another_would_run_it_for_it() -> None:
    last = "cpu/gemma4/grpo/sync/native/dp1"
    assert by_cell(plan_smoke(case_reading()))[last].state is PlanState.SHARED
    alone = plan_smoke(case_reading(), selection=Selection(cells=(last,)))
    assert by_cell(alone)[last].state is PlanState.RUN


def test_a_machine_without_evidence_runs_nothing_and_says_why() -> None:
    plan = plan_smoke(case_reading(), here=False)
    assert plan.runnable == ()
    assert {(cell.evidence, cell.reason, cell.cases) for cell in plan.cells} == {(None, "switched off", ())}


def test_what_the_subject_does_not_offer_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "capabilities", lambda name: frozenset({Capability.PADDING}))
    (entry,) = set(by_cell(plan_smoke(case_reading())).values())
    assert entry.state is PlanState.NOT_APPLICABLE
    assert entry.reason == "reference does not offer training"


def test_every_planned_cell_can_be_built_from_what_the_plan_holds() -> None:
    plan = plan_smoke(case_reading())
    assert [cell.cell for cell in plan.cells] == list(plan.by_id)
    for entry in plan.cells:
        cell = plan.by_id[entry.cell]
        assert entry.axes == {axis: getattr(cell, axis) for axis in AXES}
        assert (entry.size, entry.dtype, entry.devices) == (cell.size, cell.dtype, cell.devices)


def plan_text(matrices: Path, text: str) -> Plan:
    (matrices / "one.yaml").write_text("suite: one\ndescription: a test\n" + text, encoding="utf-8")
    return make_plan("one", Selection(), cases={"toy.case": case_reading()}, folder=matrices)


def test_a_cell_that_needs_more_devices_than_there_are_is_refused_unless_excluded(matrices: Path) -> None:
    text = "combine: [{hardware: cpu, model: qwen3, algorithm: ppo, topology: [dp1, dp9]}]\n"
    with pytest.raises(RequestError, match=r"one.yaml:3: nothing can run cell .*/dp9: it needs 9 devices .* has 8"):
        plan_text(matrices, text)
    assert len(plan_text(matrices, text + "exclude: [{match: {topology: dp9}, reason: too many}]").cells) == 1


def test_a_platform_nobody_can_probe_is_refused_unless_excluded(matrices: Path) -> None:
    with (matrices / "hardware.yaml").open("a", encoding="utf-8") as file:
        file.write("abacus:\n  description: beads\n  platform: cppu\n")
    line = len((matrices / "hardware.yaml").read_text().splitlines())
    text = "combine: [{hardware: [cpu, abacus], model: qwen3, algorithm: ppo}]\n"
    with pytest.raises(RequestError) as caught:
        plan_text(matrices, text)
    said = str(caught.value)
    assert f'hardware.yaml:{line}: unknown platform "cppu"; did you mean "cpu"?' in said
    assert "abacus/qwen3/ppo/sync/native/dp1" in said
    assert "one.yaml:3" in said
    assert len(plan_text(matrices, text + "exclude: [{match: {hardware: abacus}, reason: no probe}]").cells) == 1


def test_settings_that_the_subject_refuses_are_told_where_they_stand(matrices: Path) -> None:
    cell = "  - hardware: cpu\n    model: qwen3\n    algorithm: ppo\n"
    text = f"cells:\n{cell}    settings:\n      rollout: {{max_tokns: 3}}\n"
    with pytest.raises(RequestError) as caught:
        plan_text(matrices, text)
    said = str(caught.value)
    assert said.startswith(f"{matrices}/one.yaml:8: nothing can run cell cpu/qwen3/ppo/sync/native/dp1: ")
    assert 'did you mean "max_tokens"?' in said
    assert said.count("cpu/qwen3/ppo") == 1


def test_a_plan_repeats_the_suite_as_it_was_asked_for(matrices: Path) -> None:
    path = matrices / "anywhere.yaml"
    path.write_text(
        "suite: mine\ndescription: a test\ncells: [{hardware: cpu, model: qwen3, algorithm: ppo}]\n", encoding="utf-8"
    )
    plan = make_plan(str(path), Selection(), cases={"toy.case": case_reading()}, folder=matrices)
    assert (plan.suite, plan.asked) == ("mine", str(path))
