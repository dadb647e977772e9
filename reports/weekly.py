"""A week read out of the store: what moved since the week before, what is open, and how every cell did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

import pandas as pd

from harness.errors import NothingMeasuredError
from harness.results.bundle import Bundle
from harness.results.store import Store
from harness.results.summary import CellSummary, Summary
from harness.results.vocabulary import Verdict
from reports.analysis import CellCost, CellCurves, cell_cost, cell_curves, never_measured, peak_history, step_frame
from reports.findings import FlakyPass, Mark, NotRun, failures, flaky_passes, grid, not_run
from reports.judged import CellKey, CellState, JudgedRun, judged_runs, nightly_verdicts, states
from reports.learning import Learning, learning
from reports.moves import Moves, OpenItem, Promise, moves, open_items, promises
from reports.period import Period


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """How often one class of failure was seen in a week."""

    failure_class: str
    records: int
    cells: int
    cases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CellWeek:
    """One cell's week."""

    state: CellState
    nights: Mapping[date, Verdict]
    cost: CellCost
    peaks: list[int | None]  # by day, on machines of the class of the last run
    curves: CellCurves | None  # of the last run


@dataclass(frozen=True, kw_only=True)
class Week:
    """All that a weekly report says."""

    period: Period
    runs: list[JudgedRun]
    previous_runs: list[JudgedRun]
    summary: Summary  # over the last word on every cell
    cells: list[CellWeek]
    moves: Moves
    promises: list[Promise]
    open_items: list[OpenItem]
    by_class: list[ClassCount]
    flaky: list[FlakyPass]
    not_run: list[NotRun]
    case_names: list[str]
    grid: list[tuple[CellSummary, list[Mark]]]
    learning: list[Learning]
    never_measured: list[str]


def gather(store: Store, period: Period) -> Week:
    """Read a week out of the store. Raises `NothingMeasuredError` when no run started in it."""
    runs = judged_runs(store, since=period.since, until=period.until)
    if not runs:
        raise NothingMeasuredError(_no_run(store, period))
    previous_runs = judged_runs(store, since=period.previous.since, until=period.previous.until)
    after, before = states(runs), states(previous_runs)
    with_steps = {run_id: store.bundle(run_id) for run_id in sorted({one.run.summary.run_id for one in after.values()})}
    frames = {run_id: step_frame(bundle) for run_id, bundle in with_steps.items()}
    summaries = [state.summary for state in after.values()]
    case_names, rows = grid(summaries)
    return Week(
        period=period,
        runs=runs,
        previous_runs=previous_runs,
        summary=Summary(run_id=period.name, complete=True, cells=tuple(summaries), unplanned=()),
        cells=_cell_weeks(after, runs, period, with_steps, frames),
        moves=moves(before, after, runs_before=previous_runs, runs_after=runs),
        promises=promises(before, after),
        open_items=open_items(after, [*previous_runs, *runs]),
        by_class=_by_class(runs),
        flaky=[item for run in runs for item in flaky_passes(run.summary.cells)],
        not_run=not_run(summaries),
        case_names=case_names,
        grid=rows,
        learning=[one for run_id, bundle in with_steps.items() for one in learning(bundle, frames[run_id])],
        never_measured=never_measured(pd.concat(frames.values())),
    )


def _no_run(store: Store, period: Period) -> str:
    all_runs = store.run_ids()
    remedy = (
        f'its last run is "{all_runs[-1]}"; choose another week with --week'
        if all_runs
        else "it holds no run at all; load some with `rl-gauntlet ingest`"
    )
    return f'no run in the store "{store.name}" started between {period.first} and {period.last}: {remedy}'


def _cell_weeks(
    after: Mapping[CellKey, CellState],
    runs: list[JudgedRun],
    period: Period,
    bundles: Mapping[str, Bundle],
    frames: Mapping[str, pd.DataFrame],
) -> list[CellWeek]:
    nights = nightly_verdicts(runs)
    weeks = []
    for key, state in after.items():
        run_id = state.run.summary.run_id
        machine_class = state.run.bundle.header.machine.machine_class
        weeks.append(
            CellWeek(
                state=state,
                nights=nights[key],
                cost=cell_cost(bundles[run_id], frames[run_id], key.cell),
                peaks=peak_history(runs, key, machine_class, period.days),
                curves=cell_curves(frames[run_id], key.cell),
            )
        )
    return weeks


def _by_class(runs: Iterable[JudgedRun]) -> list[ClassCount]:
    """Every failing record of the week, shared outcomes counted once, the most frequent class first."""
    records: Counter[str] = Counter()
    cells: dict[str, set[str]] = defaultdict(set)
    cases: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for failure in failures(run.summary.cells, run.summary.unplanned):
            records[failure.failure_class] += 1
            cells[failure.failure_class].add(failure.record.cell)
            cases[failure.failure_class].add(failure.record.case)
    return [
        ClassCount(failure_class=name, records=count, cells=len(cells[name]), cases=tuple(sorted(cases[name])))
        for name, count in records.most_common()
    ]
