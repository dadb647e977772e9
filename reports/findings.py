"""What a reader must act on or know of, from the verdicts: failures, flaky passes, what did not run and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from harness.results.records import CaseRecord
from harness.results.summary import CellSummary
from harness.results.vocabulary import Flag, Outcome


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One record that is a failure, and the cells that take their outcome from it."""

    record: CaseRecord
    shared_by: tuple[str, ...] = ()

    @property
    def failure_class(self) -> str:
        return self.record.failure_class or "unclassified"


@dataclass(frozen=True, kw_only=True)
class FlakyPass:
    cell: str
    case: str
    record: CaseRecord


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """What did not run for one and the same reason; a cell without a case applying has none."""

    reason: str
    cells: tuple[str, ...]
    cases: int


def failures(cells: Iterable[CellSummary], unplanned: Iterable[CaseRecord] = ()) -> list[Failure]:
    """Each failing record once, in the order of the plan, those that nobody planned last."""
    records: dict[tuple[str, str], CaseRecord] = {}
    shared_by: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in cells:
        for status in cell.cases:
            if status.failed and status.record is not None:
                key = status.record.cell, status.case
                records[key] = status.record
                if status.shared_with is not None:
                    shared_by[key].append(cell.cell)
    for record in unplanned:
        if record.outcome not in (Outcome.PASSED, Outcome.NOT_RUN):
            records.setdefault((record.cell, record.case), record)
    return [Failure(record=record, shared_by=tuple(shared_by[key])) for key, record in records.items()]


def flaky_passes(cells: Iterable[CellSummary]) -> list[FlakyPass]:
    return [
        FlakyPass(cell=cell.cell, case=status.case, record=status.record)
        for cell in cells
        for status in cell.cases
        if Flag.FLAKY in status.flags and status.record is not None and status.shared_with is None
    ]


def not_run(cells: Iterable[CellSummary]) -> list[NotRun]:
    """Grouped by reason, the most frequent first."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    cases: dict[str, int] = defaultdict(int)
    for cell in cells:
        missing = [status for status in cell.cases if status.outcome is Outcome.NOT_RUN]
        for reason in dict.fromkeys(status.reason for status in missing) if cell.cases else (cell.reason,):
            by_reason[reason].append(cell.cell)
            cases[reason] += sum(status.reason == reason for status in missing)
    groups = [NotRun(reason=reason, cells=tuple(cells), cases=cases[reason]) for reason, cells in by_reason.items()]
    return sorted(groups, key=lambda group: -len(group.cells))


MARK_WORDS = {
    "passed": "pass",
    "failed": "fail",
    "smoke": "smoke",
    "flaky": "flaky",
    "not_run": "not run",
    "not_applicable": "–",
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One square of the grid of cells and cases."""

    kind: str  # a key of MARK_WORDS, and the name of its colour
    shared_with: str | None = None
    note: str = ""


def grid(cells: Iterable[CellSummary]) -> tuple[list[str], list[tuple[CellSummary, list[Mark]]]]:
    """Names of the cases, in the order of the plans, and for each cell a mark a case."""
    listed = list(cells)
    names = list(dict.fromkeys(case.case for cell in listed for case in cell.plan.cases))
    return names, [(cell, _marks(cell, names)) for cell in listed]


def _marks(cell: CellSummary, names: list[str]) -> list[Mark]:
    statuses = {status.case: status for status in cell.cases}
    reasons = {case.case: case.reason for case in cell.plan.cases}
    marks = []
    for name in names:
        status = statuses.get(name)
        if status is None:
            marks.append(Mark(kind="not_applicable", note=reasons.get(name, "")))
        elif status.failed:
            assert status.record is not None
            marks.append(Mark(kind="failed", shared_with=status.shared_with, note=status.record.failure_class or ""))
        elif status.outcome is Outcome.NOT_RUN:
            marks.append(Mark(kind="not_run", shared_with=status.shared_with, note=status.reason))
        else:
            flag = next((flag for flag in (Flag.SMOKE, Flag.FLAKY) if flag in status.flags), None)
            marks.append(Mark(kind=flag or "passed", shared_with=status.shared_with))
    return marks
