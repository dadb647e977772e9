"""Runs and what they say of each cell, where several runs speak of the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

from harness.errors import ExitCode
from harness.results.bundle import Bundle
from harness.results.records import CaseRecord, PlannedCase, PlannedCell
from harness.results.store import Store, as_utc
from harness.results.summary import CaseStatus, CellSummary, Summary, judge_cell, summarise
from harness.results.vocabulary import Evidence, Outcome, Verdict


class CellKey(NamedTuple):
    """What makes two nights' verdicts comparable. Another evidence is another cell: kinds are never mixed."""

    cell: str
    size: str
    dtype: str
    evidence: Evidence | None


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """One run and its verdicts."""

    bundle: Bundle
    summary: Summary

    @property
    def started(self) -> datetime:
        return as_utc(self.bundle.header.started)


@dataclass(frozen=True, kw_only=True)
class CellState:
    """How a cell stands after some runs: each case as the last run that planned it left it.

    A run of a part of the cases, to reproduce a failure say, takes nothing away from what is known of the others.
    """

    key: CellKey
    summary: CellSummary
    run_of: Mapping[str, JudgedRun]  # by case

    @property
    def verdict(self) -> Verdict:
        return self.summary.verdict

    @property
    def last_run(self) -> JudgedRun | None:
        """None for a cell without cases."""
        return max(self.run_of.values(), key=lambda run: run.started, default=None)

    @property
    def failing(self) -> dict[str, CaseStatus]:
        return {status.case: status for status in self.summary.cases if status.failed}

    @property
    def records(self) -> list[CaseRecord]:
        """What the verdict rests on and the cell ran itself."""
        return [one.record for one in self.summary.cases if one.record is not None and one.shared_with is None]


def headline(summary: Summary) -> str:
    """One word or two for all cells together."""
    if summary.exit_code is ExitCode.PASSED:
        return "passed"
    if summary.exit_code is ExitCode.NOTHING_MEASURED:
        return "nothing measured"
    return "failed" if summary.verdicts[Verdict.FAILED] or summary.unplanned else "incomplete"


def judge(bundle: Bundle) -> JudgedRun:
    return JudgedRun(bundle=bundle, summary=summarise(bundle.header, bundle.records))


def judged_runs(store: Store, *, since: datetime, until: datetime) -> list[JudgedRun]:
    """Runs of a period, oldest first, without their steps."""
    return [judge(store.bundle(run_id, steps=False)) for run_id in store.run_ids(since=since, until=until)]


def states(runs: Iterable[JudgedRun]) -> dict[CellKey, CellState]:
    """The last word on every planned cell, in the order of the plans. `runs` are given oldest first."""
    plans: dict[CellKey, PlannedCell] = {}
    planned: dict[CellKey, dict[str, PlannedCase]] = defaultdict(dict)
    statuses: dict[CellKey, dict[str, CaseStatus]] = defaultdict(dict)
    run_of: dict[CellKey, dict[str, JudgedRun]] = defaultdict(dict)
    for run in runs:
        for summary in run.summary.cells:
            key = key_of(summary)
            plans[key] = summary.plan
            judged = {status.case: status for status in summary.cases}
            for case in summary.plan.cases:
                status, known = judged.get(case.case), statuses[key].get(case.case)
                if status is not None and status.outcome is Outcome.NOT_RUN and known is not None and known.failed:
                    continue  # planned and not reached: a pass does not outlast that, and a failure is not mended by it
                planned[key][case.case] = case
                run_of[key][case.case] = run
                statuses[key].pop(case.case, None)
                if status is not None:
                    statuses[key][case.case] = status
    return {
        key: CellState(
            key=key,
            summary=judge_cell(
                plan.model_copy(update={"cases": tuple(planned[key].values())}),
                tuple(statuses[key][name] for name in planned[key] if name in statuses[key]),
            ),
            run_of=run_of[key],
        )
        for key, plan in plans.items()
        if key in _measurable(plans)
    }


def nights(runs: Iterable[JudgedRun]) -> dict[CellKey, dict[date, CellSummary]]:
    """By cell and day, the worst that was said: a later run of one day does not hide an earlier failure."""
    order = list(Verdict)  # worst first
    said: dict[CellKey, dict[date, CellSummary]] = defaultdict(dict)
    for run in runs:
        for summary in run.summary.cells:
            days, day = said[key_of(summary)], run.started.date()
            if day not in days or order.index(summary.verdict) < order.index(days[day].verdict):
                days[day] = summary
    return {key: days for key, days in said.items() if key in _measurable(said)}


def key_of(summary: CellSummary) -> CellKey:
    """The series that one run's word on a cell belongs to."""
    plan = summary.plan
    return CellKey(plan.cell, plan.size, plan.dtype, summary.evidence or plan.evidence)


def _measurable(keys: Iterable[CellKey]) -> set[CellKey]:
    """Leave out what only a machine without the hardware said, where another machine could measure the cell."""
    measured = {key[:3] for key in keys if key.evidence is not None}
    return {key for key in keys if key.evidence is not None or key[:3] not in measured}
