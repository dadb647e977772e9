from __future__ import annotations

import subprocess
import sys

import pytest

from harness.errors import ExitCode
from harness.results.records import EndRecord, PlannedCase
from harness.results.summary import ENDED_BEFORE, NO_RECORD, summarise
from harness.results.vocabulary import Evidence, FailureClass, Flag, Outcome, PlanState, Verdict
from tests.reports.builders import CELLS, case, header, planned_cell, shared

A, B, C = CELLS[:3]
FAILURES = (Outcome.FAILED, Outcome.OOM, Outcome.TIMEOUT, Outcome.CRASHED)


def one_cell(*outcomes, **changes):
    """Summarise a run of one cell whose cases are x.0, x.1 … with these outcomes; None leaves no record."""
    names = [f"x.{number}" for number in range(len(outcomes))]
    run = header([planned_cell(A, names, **changes)])
    records = [
        case(run, A, name, outcome) for name, outcome in zip(names, outcomes, strict=True) if outcome is not None
    ]
    return summarise(run, records)


def end(run):
    return EndRecord(run_id=run.run_id, finished="2026-11-30T02:05:00+00:00", exit_code=0)


def test_a_cell_passes_when_every_planned_case_passed():
    summary = one_cell(Outcome.PASSED, Outcome.PASSED)
    assert summary.cells[0].verdict is Verdict.PASSED
    assert (summary.cells[0].passed, len(summary.cells[0].cases)) == (2, 2)
    assert summary.exit_code is ExitCode.PASSED


@pytest.mark.parametrize("outcome", FAILURES)
def test_one_case_that_is_not_a_pass_fails_the_cell(outcome):
    summary = one_cell(Outcome.PASSED, outcome, None)
    assert summary.cells[0].verdict is Verdict.FAILED
    assert summary.exit_code is ExitCode.FAILED


def test_a_planned_case_without_a_record_is_not_run_and_the_cell_is_not_green():
    summary = one_cell(Outcome.PASSED, None)
    status = summary.cells[0].cases[1]
    assert (status.outcome, status.reason) == (Outcome.NOT_RUN, ENDED_BEFORE)
    assert summary.cells[0].verdict is Verdict.INCOMPLETE
    assert summary.exit_code is ExitCode.FAILED


def test_a_finished_run_without_a_record_says_so():
    run = header([planned_cell(A, ["x.y"])])
    assert summarise(run, [end(run)]).cells[0].cases[0].reason == NO_RECORD


def test_a_case_that_says_it_did_not_run_is_no_evidence():
    run = header([planned_cell(A, ["x.y"])])
    summary = summarise(run, [case(run, A, "x.y", Outcome.NOT_RUN, message="no free port")])
    assert summary.cells[0].verdict is Verdict.NOT_RUN
    assert summary.cells[0].reason == "no free port"
    assert summary.exit_code is ExitCode.NOTHING_MEASURED


@pytest.mark.parametrize("changes", [{"flags": (Flag.SMOKE,)}, {"examples": 0}])
def test_running_to_the_end_without_asserting_is_smoke_and_proves_nothing(changes):
    run = header([planned_cell(A, ["x.y"])])
    summary = summarise(run, [case(run, A, "x.y", **changes)])
    assert summary.cells[0].verdict is Verdict.SMOKE_ONLY
    assert summary.cells[0].cases[0].flags == (Flag.SMOKE,)
    assert (summary.cases_passed, summary.cases_planned) == (0, 1)
    assert summary.exit_code is ExitCode.NOTHING_MEASURED


def test_a_smoke_case_beside_an_asserting_one_leaves_the_cell_green_but_is_not_counted():
    run = header([planned_cell(A, ["x.y", "x.z"])])
    cell = summarise(run, [case(run, A, "x.y", flags=(Flag.SMOKE,)), case(run, A, "x.z")]).cells[0]
    assert cell.verdict is Verdict.PASSED
    assert (cell.passed, len(cell.cases)) == (1, 2)


def test_a_cell_without_evidence_counts_in_the_denominator_and_is_never_green():
    run = header([planned_cell(A, ["x.y"]), planned_cell(B, ["x.y"], evidence=None, reason="no mi300x here")])
    summary = summarise(run, [case(run, A, "x.y")])
    assert [cell.verdict for cell in summary.cells] == [Verdict.PASSED, Verdict.NOT_RUN]
    assert summary.cells[1].reason == "no mi300x here"
    assert (summary.cases_passed, summary.cases_planned) == (1, 2)
    assert summary.exit_code is ExitCode.FAILED


def test_a_cell_that_no_case_applies_to_is_not_run():
    run = header([planned_cell(A, [PlannedCase(case="x.y", state=PlanState.NOT_APPLICABLE, reason="no critic")])])
    summary = summarise(run, [])
    assert summary.cells[0].verdict is Verdict.NOT_RUN
    assert summary.cases_planned == 0
    assert summary.exit_code is ExitCode.NOTHING_MEASURED


def test_an_empty_plan_measures_nothing():
    run = header([])
    assert summarise(run, [end(run)]).exit_code is ExitCode.NOTHING_MEASURED


@pytest.mark.parametrize(("outcome", "verdict"), [(Outcome.PASSED, Verdict.PASSED), (Outcome.OOM, Verdict.FAILED)])
def test_a_shared_case_takes_the_outcome_of_the_cell_that_ran_it(outcome, verdict):
    run = header([planned_cell(A, ["x.y"]), planned_cell(B, [shared("x.y", A)])])
    summary = summarise(run, [case(run, A, "x.y", outcome)])
    status = summary.cells[1].cases[0]
    assert (status.outcome, status.shared_with) == (outcome, A)
    assert summary.cells[1].verdict is verdict


def test_a_shared_case_whose_runner_never_came_to_it_is_not_run():
    run = header([planned_cell(A, ["x.y"]), planned_cell(B, [shared("x.y", A), "x.z"])])
    summary = summarise(run, [case(run, B, "x.z")])
    assert summary.cells[1].verdict is Verdict.INCOMPLETE


def test_a_cell_without_evidence_takes_nothing_from_the_cell_it_shares_with():
    run = header(
        [planned_cell(A, ["x.y"]), planned_cell(B, [shared("x.y", A)], evidence=None, reason="no mi300x here")]
    )
    summary = summarise(run, [case(run, A, "x.y")])
    assert summary.cells[1].verdict is Verdict.NOT_RUN
    assert summary.cells[1].cases[0].reason == "no mi300x here"


def test_evidence_is_the_weakest_a_verdict_rests_on_and_kinds_are_counted_apart():
    run = header(
        [
            planned_cell(A, ["x.y", "x.z"]),
            planned_cell(B, [shared("x.y", A)], evidence=Evidence.EMULATED),
            planned_cell(C, ["x.y"]),
        ]
    )
    records = [case(run, A, "x.y"), case(run, A, "x.z", evidence=Evidence.FORECAST), case(run, C, "x.y")]
    summary = summarise(run, records)
    assert [cell.evidence for cell in summary.cells] == [Evidence.FORECAST, Evidence.EMULATED, Evidence.DEVICE]
    counts = {kind: counted[Verdict.PASSED] for kind, counted in summary.verdicts_by_evidence().items()}
    assert counts == {Evidence.DEVICE: 1, Evidence.EMULATED: 1, Evidence.FORECAST: 1}


def retried(first_class: FailureClass, second: Outcome):
    run = header([planned_cell(A, ["x.y"])])
    return summarise(
        run,
        [
            case(run, A, "x.y", Outcome.CRASHED, failure_class=first_class),
            case(run, A, "x.y", second, attempt=2),
        ],
    ).cells[0]


def test_a_pass_on_the_retry_is_a_flagged_pass():
    cell = retried(FailureClass.INFRA_WORKER_LOST, Outcome.PASSED)
    assert cell.verdict is Verdict.PASSED
    assert cell.cases[0].flags == (Flag.FLAKY,)


def test_a_failure_on_the_retry_is_a_failure():
    cell = retried(FailureClass.INFRA_WORKER_LOST, Outcome.FAILED)
    assert cell.verdict is Verdict.FAILED
    assert cell.cases[0].record is not None
    assert cell.cases[0].record.attempt == 2


def test_a_retry_cannot_take_back_a_failure_of_the_subject():
    cell = retried(FailureClass.CONTRACT, Outcome.PASSED)
    assert cell.verdict is Verdict.FAILED
    assert cell.cases[0].record is not None
    assert cell.cases[0].record.attempt == 1


def test_a_fault_that_was_never_retried_stands():
    run = header([planned_cell(A, ["x.y"])])
    summary = summarise(run, [case(run, A, "x.y", Outcome.CRASHED, failure_class=FailureClass.INFRA_START)])
    assert summary.exit_code is ExitCode.FAILED


def test_the_ledger_excuses_nothing():
    run = header([planned_cell(A, ["x.y"])])
    cell = summarise(run, [case(run, A, "x.y", Outcome.FAILED, flags=(Flag.KNOWN,))]).cells[0]
    assert cell.verdict is Verdict.FAILED
    assert cell.cases[0].flags == (Flag.KNOWN,)


def test_a_failure_that_nobody_planned_is_kept_and_fails_the_run():
    run = header([planned_cell(A, ["x.y"])])
    summary = summarise(run, [case(run, A, "x.y"), case(run, A, "x.z", Outcome.FAILED)])
    assert [record.case for record in summary.unplanned] == ["x.z"]
    assert summary.exit_code is ExitCode.FAILED


def test_reading_results_loads_neither_torch_nor_pandas_nor_a_database():
    code = (
        "import sys, harness.results.bundle, harness.results.summary, harness.results.records, harness.cli.ingest\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'sqlalchemy', 'hypothesis'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
