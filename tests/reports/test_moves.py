from __future__ import annotations

from datetime import date, timedelta

import pytest

from harness.results.vocabulary import Evidence, FailureClass, Outcome, Verdict
from reports.judged import judge, nights, states
from reports.moves import moves, open_items, promises
from tests.reports import builders
from tests.reports.builders import CELLS, MONDAY

A, B, C = CELLS[:3]
FAILED = {"outcome": Outcome.FAILED}


@pytest.fixture
def night(tmp_path):
    def make(day, failing=(), *, cells=(A,), cases=("x.y", "x.z"), **changes):
        outcomes = {(cell, name): FAILED for cell in cells for name in failing}
        started = MONDAY + timedelta(days=day)
        folder = tmp_path / f"{day}-{len(list(tmp_path.iterdir()))}"
        return judge(builders.night(folder, started=started, cells=cells, cases=cases, outcomes=outcomes, **changes))

    return make


def compare(before, after):
    return moves(states(before), states(after), runs_before=before, runs_after=after)


def test_equal_weeks_move_nothing(night):
    assert not compare([night(-7)], [night(0)]).any


def test_a_flip_names_the_cases_that_broke_or_mended(night):
    worse = compare([night(-7)], [night(0, ["x.y"])]).flips[0]
    assert (worse.before, worse.after, worse.broke, worse.mended) == (Verdict.PASSED, Verdict.FAILED, ("x.y",), ())
    assert worse.worse
    better = compare([night(-7, ["x.y"])], [night(0)]).flips[0]
    assert better.mended == ("x.y",)
    assert not better.worse


def test_another_case_failing_in_a_red_cell_is_a_move_for_the_worse(night):
    flip = compare([night(-7, ["x.y"])], [night(0, ["x.z"])]).flips[0]
    assert (flip.broke, flip.mended, flip.worse) == (("x.z",), ("x.y",), True)


def test_cells_gained_and_lost_are_told_and_another_evidence_is_another_cell(night):
    moved = compare([night(-7, cells=(A, B))], [night(0, cells=(B, C))])
    assert [key.cell for key in moved.gained] == [C]
    assert [key.cell for key in moved.lost] == [A]


def test_versions_and_machines_that_changed_are_told(night):
    moved = compare(
        [night(-7, versions={"torch": "2.12", "python": "3.11"})],
        [night(0, versions={"torch": "2.13", "python": "3.11"})],
    )
    assert [(change.what, change.before, change.after) for change in moved.surroundings] == [("torch", "2.12", "2.13")]


def test_the_last_run_that_could_measure_a_cell_has_the_last_word(tmp_path, night):
    measured = night(0)
    elsewhere = builders.header(
        [builders.planned_cell(A, ["x.y", "x.z"], evidence=None, reason="no such device")],
        started=MONDAY + timedelta(days=1),
    )
    blind = judge(builders.bundle(tmp_path / "blind", elsewhere, []))
    only = states([measured, blind])
    assert [(key.evidence, state.verdict) for key, state in only.items()] == [(Evidence.DEVICE, Verdict.PASSED)]
    assert [state.verdict for state in states([blind]).values()] == [Verdict.NOT_RUN]


def test_a_cell_that_should_have_run_and_did_not_does_not_stay_green(tmp_path, night):
    run = builders.header([builders.planned_cell(A, ["x.y", "x.z"])], started=MONDAY + timedelta(days=1))
    killed = judge(builders.bundle(tmp_path / "killed", run, [], end=None))
    assert [state.verdict for state in states([night(0), killed]).values()] == [Verdict.NOT_RUN]


def test_a_run_of_some_cases_takes_nothing_from_the_others(night):
    runs = [night(0, ["x.z"]), night(1, cases=("x.y",))]
    (state,) = states(runs).values()
    assert state.verdict is Verdict.FAILED
    assert list(state.failing) == ["x.z"]
    assert len(state.summary.cases) == 2
    (item,) = open_items(states(runs), runs)
    assert item.run is runs[0]


def test_a_later_run_of_one_day_does_not_hide_an_earlier_failure(night):
    (days,) = nights([night(0, ["x.y"]), night(0, run_id="later"), night(1)]).values()
    verdicts = {day: summary.verdict for day, summary in days.items()}
    assert verdicts == {date(2026, 11, 30): Verdict.FAILED, date(2026, 12, 1): Verdict.PASSED}


def test_an_open_item_knows_since_when_and_a_pass_in_between_starts_it_anew(night):
    runs = [night(0, ["x.y"]), night(1), night(2, ["x.y"]), night(3, ["x.y"])]
    items = open_items(states(runs), runs)
    assert [(item.status.case, item.since, item.nights) for item in items] == [("x.y", date(2026, 12, 2), 2)]


def test_what_last_week_left_open_is_followed_up(night):
    before = states([night(-7, ["x.y", "x.z"]), night(-7, ["x.y"], cells=(B,))])
    after = states([night(0, ["x.z"])])
    became = {(promise.cell, promise.case): promise.became for promise in promises(before, after)}
    assert became == {(A, "x.y"): "mended", (A, "x.z"): "still open", (B, "x.y"): "not measured"}


def test_a_retried_fault_is_an_open_item_with_its_class(tmp_path, night):
    run = builders.header([builders.planned_cell(A, ["x.y"])])
    records = [
        builders.case(run, A, "x.y", Outcome.CRASHED, failure_class=FailureClass.INFRA_START, attempt=one)
        for one in (1, 2)
    ]
    runs = [judge(builders.bundle(tmp_path / "b", run, records))]
    assert [item.status.record.attempt for item in open_items(states(runs), runs) if item.status.record] == [2]
