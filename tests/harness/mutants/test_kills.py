"""Each mutant of a pure case is killed by its own case, on a tiny model in this process; the sound trainer passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cases.base import Context
from harness.cases.registry import all_cases
from harness.cases.runner import CaseAnswer, run_case
from harness.matrix.cell import AXES, Cell
from harness.mutants.activate import Activation
from harness.mutants.registry import all_mutants
from harness.subjects.protocol import Subject
from harness.subjects.registry import build_subject

PURE = [
    case
    for case in all_cases().values()
    if case.examples > 1 and not case.id.startswith(("sockets.", "rollout.drafts"))  # the latter: test_draft_kills.py
]
# Those of one model, topology or algorithm need its cells: `rl-gauntlet mutants` runs them.
MUTANTS = [
    mutant
    for mutant in all_mutants().values()
    if mutant.only_model is mutant.only_topology is mutant.only_algorithm is None
    and any(mutant.case == case.id for case in PURE)
]


@pytest.fixture(scope="module")
def subject(tiny_cell: Cell) -> Iterator[Subject]:
    subject = build_subject(tiny_cell)
    yield subject
    subject.close()


def _run(case_id: str, cell: Cell, subject: Subject, *, examples: int) -> CaseAnswer:
    context = Context(cell=cell, subject=subject, seed=1)
    return run_case(all_cases()[case_id], context, seed=1, examples=examples)


@pytest.mark.parametrize("case_id", [case.id for case in PURE])
def test_the_sound_trainer_passes(case_id: str, tiny_cell: Cell, subject: Subject) -> None:
    answer = _run(case_id, tiny_cell, subject, examples=25)
    assert answer.passed, answer.message
    assert answer.examples == 25


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_a_mutant_is_killed_by_its_own_case(
    name: str,
    tiny_cell: Cell,
    subject: Subject,
    patches_undone: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant = all_mutants()[name]
    case = all_cases()[mutant.case]
    monkeypatch.setattr(type(case), "seconds", 0.5)  # leaves little time for shrinking, which is not the point here
    hits = tmp_path / "hits"
    Activation(name=name, hits_path=str(hits), axes={axis: getattr(tiny_cell, axis) for axis in AXES})()
    answer = _run(case.id, tiny_cell, subject, examples=case.examples)
    assert not answer.passed, f"{case.id} passed {answer.examples} examples"
    assert answer.by_assertion, answer.detail
    assert answer.failure_class in {case.failure_class, *case.other_classes}
    assert hits.stat().st_size > 0
