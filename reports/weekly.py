"""A week read out of the store: what moved since the week before, what is open, and how every cell did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache

import pandas as pd

from harness.errors import NothingMeasuredError
from harness.results.store import Store
from harness.results.summary import CellSummary, Summary
from reports.analysis import CellCost, CellCurves, cell_cost, cell_curves, never_measured, peak_history, step_frame
from reports.findings import FlakyPass, Mark, NotRun, failures, flaky_passes, grid, not_run
from reports.judged import CellState, JudgedRun, judged_runs, nights, states
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
    nights: Mapping[date, CellSummary]  # the worst of each
    cost: CellCost
    peaks: list[int | None]  # by day, on machines of the class of the last run
    curves: CellCurves | None  # of the last run that trained it
    trained: JudgedRun | None  # that run
    learning: list[Learning]


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
    never_measured: list[str]


def gather(store: Store, period: Period) -> Week:
    """Read a week out of the store. Raises `NothingMeasuredError` when no run started in it."""
    runs = judged_runs(store, since=period.since, until=period.until)
    if not runs:
        raise NothingMeasuredError(_no_run(store, period))
    previous_runs = judged_runs(store, since=period.previous.since, until=period.previous.until)
    after, before = states(runs), states(previous_runs)
    frame_of = cache(lambda run_id: step_frame(store.bundle(run_id)))
    summaries = [state.summary for state in after.values()]
    case_names, rows = grid(summaries)
    by_night = nights(runs)
    cells = [_cell_week(store, state, runs, by_night[key], period, frame_of) for key, state in after.items()]
    return Week(
        period=period,
        runs=runs,
        previous_runs=previous_runs,
        summary=Summary(run_id=period.name, complete=True, cells=tuple(summaries), unplanned=()),
        cells=cells,
        moves=moves(before, after, runs_before=previous_runs, runs_after=runs),
        promises=promises(before, after),
        open_items=open_items(after, [*previous_runs, *runs]),
        by_class=_by_class(runs),
        flaky=[item for run in runs for item in flaky_passes(run.summary.cells)],
        not_run=not_run(summaries),
        case_names=case_names,
        grid=rows,
        never_measured=never_measured(frame_of(cell.trained.summary.run_id) for cell in cells if cell.trained),
    )


def _no_run(store: Store, period: Period) -> str:
    all_runs = store.run_ids()
    remedy = (
        f'its last run is "{all_runs[-1]}"; choose another week with --week'
        if all_runs
        else "it holds no run that counts (mutants and reproductions do not); load some with `rl-gauntlet ingest`"
    )
    return f'no run in the store "{store.name}" started between {period.first} and {period.last}: {remedy}'


def _cell_week(
    store: Store,
    state: CellState,
    runs: list[JudgedRun],
    by_night: Mapping[date, CellSummary],
    period: Period,
    frame_of: Callable[[str], pd.DataFrame],
) -> CellWeek:
    cell = state.key.cell
    with_steps = store.runs_with_steps(cell, size=state.key.size, dtype=state.key.dtype, evidence=state.key.evidence)
    trained = next((run for run in reversed(runs) if run.summary.run_id in with_steps), None)
    frame = frame_of(trained.summary.run_id) if trained else step_frame(None)
    machine = state.last_run.bundle.header.machine.machine_class if state.last_run else ""
    return CellWeek(
        state=state,
        nights=by_night,
        cost=cell_cost(state.records, frame, cell),
        peaks=peak_history(runs, state.key, machine, period.days),
        curves=cell_curves(frame, cell),
        trained=trained,
        learning=learning(state.records, frame_of),
    )


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
