"""Runs and what they say of each cell, where several runs speak of the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

from harness.errors import ExitCode
from harness.results.bundle import Bundle
from harness.results.store import Store, as_utc
from harness.results.summary import CaseStatus, CellSummary, Summary, summarise
from harness.results.vocabulary import Evidence, Verdict


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
    """How a cell stands after some runs: what the last run that could measure it said."""

    key: CellKey
    run: JudgedRun
    summary: CellSummary

    @property
    def verdict(self) -> Verdict:
        return self.summary.verdict

    @property
    def failing(self) -> dict[str, CaseStatus]:
        return {status.case: status for status in self.summary.cases if status.failed}


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
    """The last word on every planned cell, in the order of the plans."""
    latest: dict[CellKey, CellState] = {}
    for run in runs:
        for summary in run.summary.cells:
            key = _key(summary)
            latest[key] = CellState(key=key, run=run, summary=summary)
    return {key: state for key, state in latest.items() if key in _measurable(latest)}


def nightly_verdicts(runs: Sequence[JudgedRun]) -> dict[CellKey, dict[date, Verdict]]:
    """By cell and day, the worst that was said: a later run of one day does not hide an earlier failure."""
    said: dict[CellKey, dict[date, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for summary in run.summary.cells:
            said[_key(summary)][run.started.date()].append(summary.verdict)
    order = list(Verdict)  # worst first
    return {
        key: {day: min(verdicts, key=order.index) for day, verdicts in days.items()}
        for key, days in said.items()
        if key in _measurable(said)
    }


def _key(summary: CellSummary) -> CellKey:
    plan = summary.plan
    return CellKey(plan.cell, plan.size, plan.dtype, summary.evidence or plan.evidence)


def _measurable(keys: Iterable[CellKey]) -> set[CellKey]:
    """Leave out what only a machine without the hardware said, where another machine could measure the cell."""
    measured = {key[:3] for key in keys if key.evidence is not None}
    return {key for key in keys if key.evidence is not None or key[:3] not in measured}
