"""A child that misbehaves costs the case it was on, is named rightly, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.execution import processes
from harness.execution.limits import GIB, Limits
from harness.execution.nursery import Nursery
from harness.execution.recording import Asked, Frame
from harness.execution.session import CellSession
from harness.results.records import CaseRecord, StepRecord
from harness.results.vocabulary import Evidence, FailureClass, Flag, Outcome
from tests.harness.execution import misbehaving


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


class Bench:
    """A session over the misbehaving cases, and what it emitted."""

    def __init__(self, nursery: Nursery, logs: Path, **changes: object) -> None:
        self.steps: list[StepRecord] = []
        frame = {
            "run_id": "r",
            "cell": misbehaving.CELL,
            "evidence": Evidence.DEVICE,
            "logs": logs,
            "limits": Limits(process_bytes=8 * GIB),
            "cases": misbehaving.cases,
            "build": misbehaving.build,
            "reproduce": lambda asked, shrunk: f"again {asked.case.id} {shrunk}",
            **changes,
        }
        self.session = CellSession(nursery, Frame(**frame), on_step=self.steps.append)

    def run(self, case: str, **changes: object) -> list[CaseRecord]:
        asked = {"case": misbehaving.cases()[case], "seed": 1, "examples": 100, **changes}
        return self.session.run(Asked(**asked))


@pytest.fixture
def bench(nursery: Nursery, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(nursery, tmp_path)
    yield bench
    bench.session.close()


def test_one_child_answers_case_after_case(bench: Bench) -> None:
    (first,), (second,) = bench.run("ok.passes"), bench.run("ok.passes")
    assert first.outcome is second.outcome is Outcome.PASSED
    assert first.notes["pid"] == second.notes["pid"]
    assert [(step.seed, step.step, step.metrics) for step in bench.steps] == [
        (7, 0, {"reward": 0.5, "absent": None})
    ] * 2


def test_a_failure_carries_its_shrunk_input_and_a_command(bench: Bench) -> None:
    (record,) = bench.run("ok.fails")
    assert (record.outcome, record.failure_class, record.by_assertion) == (Outcome.FAILED, FailureClass.CONTRACT, True)
    assert record.shrunk_input == {"n": 17}
    assert record.reproduce == "again ok.fails {'n': 17}"


def test_a_replayed_input_is_judged_alone(bench: Bench) -> None:
    (bad,), (good,) = bench.run("ok.fails", data={"n": 900}), bench.run("ok.fails", data={"n": 3})
    assert (bad.outcome, bad.shrunk_input, bad.examples) == (Outcome.FAILED, {"n": 900}, 1)
    assert (good.outcome, good.examples) == (Outcome.PASSED, 1)


def test_an_exception_is_a_failure_but_not_an_assertion(bench: Bench) -> None:
    (record,) = bench.run("bad.raises")
    assert (record.outcome, record.by_assertion) == (Outcome.FAILED, False)
    assert "lost" in record.message


@pytest.mark.parametrize(
    ("case", "outcome", "failure_class", "says"),
    [
        ("bad.segfaults", Outcome.CRASHED, FailureClass.CRASH_SIGNAL, "SIGSEGV"),
        ("bad.is-killed", Outcome.CRASHED, FailureClass.CRASH_SIGNAL, "SIGKILL"),
        ("bad.exits", Outcome.CRASHED, FailureClass.CONTRACT, "status 3"),
        ("bad.hangs", Outcome.TIMEOUT, FailureClass.HANG_STALLED, "no answer within 1 s"),
        ("bad.crawls", Outcome.TIMEOUT, FailureClass.HANG_SLOW, "no answer within 2 s"),
        ("bad.asks-for-too-much", Outcome.OOM, FailureClass.OOM_HOST, "can't allocate memory"),
    ],
)
def test_a_lost_child_costs_one_case(
    bench: Bench, case: str, outcome: Outcome, failure_class: FailureClass, says: str
) -> None:
    (record,) = bench.run(case)
    assert (record.outcome, record.failure_class) == (outcome, failure_class)
    assert says in record.message
    (after,) = bench.run("ok.passes")
    assert after.outcome is Outcome.PASSED


def test_a_child_that_died_between_two_cases_costs_nothing(bench: Bench) -> None:
    (first,) = bench.run("ok.passes")
    child = bench.session._child
    assert child is not None
    os.kill(child.group, signal.SIGKILL)
    child.process.join(timeout=10)
    (second,) = bench.run("ok.passes")
    assert second.outcome is Outcome.PASSED
    assert first.notes["pid"] != second.notes["pid"]


def test_the_last_output_of_a_crash_is_kept(bench: Bench) -> None:
    (record,) = bench.run("bad.segfaults")
    assert "about to fall" in record.detail
    assert "Segmentation fault" in record.detail


def test_a_hang_says_where_it_hung_and_leaves_no_process(bench: Bench) -> None:
    bench.run("ok.passes")
    group = bench.session._child.group  # type: ignore[union-attr]
    (record,) = bench.run("bad.hangs")
    assert "within 1 s" in record.message, "the time limit of a case holds in a warm child too"
    assert "misbehaving.py" in record.detail
    assert processes.members(groups=[group], roots=[group]) == set()


def test_a_group_over_its_memory_limit_is_ended(nursery: Nursery, tmp_path: Path) -> None:
    bench = Bench(nursery, tmp_path, limits=Limits(group_bytes=500 * 1024**2))
    (record,) = bench.run("bad.grandchild-grows")
    assert (record.outcome, record.failure_class) == (Outcome.OOM, FailureClass.OOM_HOST)
    assert "over the limit of 500 MiB" in record.message
    assert record.peak_bytes is not None
    assert record.peak_bytes > 500 * 1024**2
    bench.session.close()


def test_a_fault_of_the_surroundings_is_retried_once_in_a_fresh_child(bench: Bench, tmp_path: Path) -> None:
    first, second = bench.run("bad.talks-nonsense", data={"marker": str(tmp_path / "marker")})
    assert (first.outcome, first.failure_class) == (Outcome.CRASHED, FailureClass.INFRA_WORKER_LOST)
    assert (second.outcome, second.flags, second.attempt) == (Outcome.PASSED, (Flag.FLAKY,), 2)


def test_a_subject_that_cannot_be_built_fails_each_case(nursery: Nursery, tmp_path: Path) -> None:
    bench = Bench(nursery, tmp_path, build=misbehaving.build_that_fails)
    (record,) = bench.run("ok.passes")
    assert (record.outcome, record.by_assertion) == (Outcome.FAILED, False)
    assert "no such weights" in record.message
    bench.session.close()
