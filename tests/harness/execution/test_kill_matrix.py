"""What counts as a kill: the case's own assertion, with its declared class, while the mutant's code ran."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cases.base import Case
from harness.execution.kill_matrix import KillVerdict, _judged, all_killed
from harness.mutants.base import Mutant
from harness.results.records import CaseRecord
from harness.results.vocabulary import Evidence, FailureClass, Outcome


class Known(Case):
    """A case to be killed by."""

    id = "known.case"
    origin = "tests"
    axes = ()
    needs = frozenset()
    failure_class = FailureClass.NUMERICS_DRIFT


MUTANT = Mutant(name="known.case:x", case="known.case", defect="d", install=lambda hit: None)
RED = {
    "outcome": Outcome.FAILED,
    "failure_class": FailureClass.NUMERICS_DRIFT,
    "by_assertion": True,
    "mutant_hits": 3,
}


def record(**changes: Any) -> CaseRecord:
    usual: dict[str, Any] = {
        "run_id": "r",
        "cell": "a",
        "subject": "reference",
        "case": "known.case",
        "size": "tiny",
        "dtype": "float32",
        "evidence": Evidence.DEVICE,
        "outcome": Outcome.PASSED,
        "seed": 1,
        "examples": 50,
    }
    return CaseRecord(**{**usual, **changes})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (RED, KillVerdict.KILLED),
        ({"mutant_hits": 3}, KillVerdict.SURVIVED),
        ({"mutant_hits": 0}, KillVerdict.NEVER_RAN),
        ({**RED, "mutant_hits": 0}, KillVerdict.NEVER_RAN),
        ({**RED, "mutant_hits": None}, KillVerdict.NEVER_RAN),
        ({**RED, "by_assertion": False}, KillVerdict.NOT_BY_ASSERTION),
        ({**RED, "failure_class": FailureClass.CONTRACT}, KillVerdict.NOT_BY_ASSERTION),
        (
            {"outcome": Outcome.TIMEOUT, "failure_class": FailureClass.HANG_STALLED, "mutant_hits": 3},
            KillVerdict.NOT_BY_ASSERTION,
        ),
    ],
)
def test_only_the_declared_assertion_is_a_kill(changes: dict[str, Any], verdict: KillVerdict) -> None:
    row = _judged(MUTANT, Known(), record(), lambda trial: record(**changes), target="a", bystander=None)
    assert row.verdict is verdict


def test_a_case_that_fails_without_the_mutant_kills_nothing() -> None:
    sound = record(outcome=Outcome.FAILED, failure_class=FailureClass.NUMERICS_DRIFT, message="off by one")
    row = _judged(MUTANT, Known(), sound, lambda trial: record(**RED), target="a", bystander=None)
    assert (row.verdict, row.message) == (KillVerdict.UNSOUND, "without the mutant: off by one")


@pytest.mark.parametrize(("beside", "verdict"), [({}, KillVerdict.KILLED), (RED, KillVerdict.NOT_SPARED)])
def test_a_mutant_of_one_model_must_spare_the_others(beside: dict[str, Any], verdict: KillVerdict) -> None:
    answers = {"a": record(**RED), "b": record(**beside)}
    row = _judged(MUTANT, Known(), record(), lambda trial: answers[trial.cell], target="a", bystander="b")
    assert row.verdict is verdict


def test_nothing_killed_is_not_all_killed() -> None:
    assert not all_killed([])
