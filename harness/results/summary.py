"""From a run's header and records to the verdict of every cell that was asked for. Pure.

The rules, in the order they are applied to a cell:

1. A planned case without a record is `not_run`. A `shared` case takes the outcome of the cell that ran it, but not in
   a cell that this machine can give no evidence for: there nothing is known.
2. A pass counts as evidence only when something was asserted: not flagged `smoke`, at least one input judged.
3. `failed` when any case failed, ran out of memory or time, or crashed: a flag such as `known` excuses nothing.
4. `not_run` when there can be no evidence, no case applies, or none ran; `incomplete` when some ran and some did not.
5. `smoke_only` when all ran and none asserted anything, else `passed`.

A retry can only take back a fault of the surroundings: when an earlier attempt failed with a class that is not
retried, that attempt stands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.errors import ExitCode
from harness.results.records import CaseRecord, EndRecord, PlannedCase, PlannedCell, Record, RunHeader
from harness.results.vocabulary import Evidence, Flag, Outcome, PlanState, Verdict

ENDED_BEFORE = "the run ended before it"
NO_EVIDENCE = "this machine can give no evidence for it"
NO_RECORD = "the run finished and left no record of it"
_STRENGTH = (Evidence.FORECAST, Evidence.EMULATED, Evidence.DEVICE)  # weakest first


@dataclass(frozen=True, kw_only=True)
class CaseStatus:
    """How one planned case of one cell stands."""

    case: str
    outcome: Outcome
    flags: tuple[Flag, ...] = ()
    shared_with: str | None = None  # the cell that ran it
    reason: str = ""  # why it did not run
    record: CaseRecord | None = None  # the record that the outcome comes from

    @property
    def failed(self) -> bool:
        return self.outcome not in (Outcome.PASSED, Outcome.NOT_RUN)

    @property
    def positive(self) -> bool:
        """It passed and asserted something."""
        return self.outcome is Outcome.PASSED and Flag.SMOKE not in self.flags


@dataclass(frozen=True, kw_only=True)
class CellSummary:
    """How one planned cell stands. `cases` are those that apply; they are its denominator."""

    plan: PlannedCell
    verdict: Verdict
    evidence: Evidence | None  # the weakest that the verdict rests on; None when nothing ran
    reason: str  # why it is not green, where no case says so
    cases: tuple[CaseStatus, ...]

    @property
    def cell(self) -> str:
        return self.plan.cell

    @property
    def passed(self) -> int:
        return sum(status.positive for status in self.cases)

    def count(self, outcome: Outcome) -> int:
        return sum(status.outcome is outcome for status in self.cases)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How one run stands."""

    run_id: str
    complete: bool
    cells: tuple[CellSummary, ...]
    unplanned: tuple[CaseRecord, ...]  # records of cells or cases that the plan does not have

    @property
    def exit_code(self) -> ExitCode:
        """What the command ends with.

        `FAILED` when a cell failed, `PASSED` when all selected cells passed, `NOTHING_MEASURED` when no case gave a
        positive result. What remains, some cells with evidence and some without, is `FAILED` too: a requested cell
        without evidence is never green, and `--hardware` is there to request less.
        """
        verdicts = self.verdicts
        if verdicts[Verdict.FAILED] or any(_is_failure(record) for record in self.unplanned):
            return ExitCode.FAILED
        if self.cells and verdicts[Verdict.PASSED] == len(self.cells):
            return ExitCode.PASSED
        if not any(status.positive for cell in self.cells for status in cell.cases):
            return ExitCode.NOTHING_MEASURED
        return ExitCode.FAILED

    @property
    def verdicts(self) -> Counter[Verdict]:
        return Counter(cell.verdict for cell in self.cells)

    def verdicts_by_evidence(self) -> dict[Evidence, Counter[Verdict]]:
        """Cells by the evidence that they rest on, or were to rest on; strongest first, those without any left out."""
        counts: dict[Evidence, Counter[Verdict]] = {}
        for evidence in reversed(_STRENGTH):
            verdicts = Counter(cell.verdict for cell in self.cells if (cell.evidence or cell.plan.evidence) is evidence)
            if verdicts:
                counts[evidence] = verdicts
        return counts

    @property
    def cases_passed(self) -> int:
        return sum(cell.passed for cell in self.cells)

    @property
    def cases_planned(self) -> int:
        return sum(len(cell.cases) for cell in self.cells)


def summarise(header: RunHeader, records: Iterable[Record]) -> Summary:
    """Judge a run by what it planned and what it recorded."""
    attempts: dict[tuple[str, str], list[CaseRecord]] = defaultdict(list)
    complete = False
    for record in records:
        if isinstance(record, EndRecord):
            complete = True
        elif isinstance(record, CaseRecord):
            attempts[record.cell, record.case].append(record)
    absent = NO_RECORD if complete else ENDED_BEFORE
    planned = {(cell.cell, case.case) for cell in header.planned for case in cell.cases}
    return Summary(
        run_id=header.run_id,
        complete=complete,
        cells=tuple(judge_cell(cell, _cases(cell, attempts, absent=absent)) for cell in header.planned),
        unplanned=tuple(record for key, group in attempts.items() if key not in planned for record in group),
    )


def judge_cell(plan: PlannedCell, cases: tuple[CaseStatus, ...]) -> CellSummary:
    """Judge one cell by how its cases stand; `cases` are those of the plan that apply."""
    found = [one.record.evidence for one in cases if one.record is not None and one.outcome is not Outcome.NOT_RUN]
    # Never promoted: what another cell showed on a device says of an emulated cell only that it holds emulated.
    evidence = min((*found, plan.evidence), key=_STRENGTH.index) if found and plan.evidence else None
    verdict, reason = _verdict(plan, cases)
    return CellSummary(plan=plan, verdict=verdict, evidence=evidence, reason=reason, cases=cases)


def _cases(
    plan: PlannedCell, attempts: Mapping[tuple[str, str], list[CaseRecord]], *, absent: str
) -> tuple[CaseStatus, ...]:
    return tuple(
        _judge_case(plan, case, attempts, absent=absent)
        for case in plan.cases
        if case.state is not PlanState.NOT_APPLICABLE
    )


def _verdict(plan: PlannedCell, cases: tuple[CaseStatus, ...]) -> tuple[Verdict, str]:
    not_run = [status for status in cases if status.outcome is Outcome.NOT_RUN]
    if any(status.failed for status in cases):
        return Verdict.FAILED, ""
    if plan.evidence is None:
        return Verdict.NOT_RUN, plan.reason or NO_EVIDENCE
    if not cases:
        return Verdict.NOT_RUN, "no case applies to it"
    if len(not_run) == len(cases):
        reasons = sorted({status.reason for status in not_run})
        return Verdict.NOT_RUN, "; ".join(reasons)
    if not_run:
        return Verdict.INCOMPLETE, f"{len(not_run)} of {len(cases)} cases did not run"
    if not any(status.positive for status in cases):
        return Verdict.SMOKE_ONLY, "nothing was asserted"
    return Verdict.PASSED, ""


def _judge_case(
    plan: PlannedCell, case: PlannedCase, attempts: Mapping[tuple[str, str], list[CaseRecord]], *, absent: str
) -> CaseStatus:
    """How a case stands in a cell; of several cells that run it for this one, the worst counts."""
    if case.state is not PlanState.SHARED or not case.shared_with:
        return _judge_run(plan, case, attempts, runner=plan.cell, absent=absent)
    runners = (case.shared_with, *case.also_shared_with)
    found = [_judge_run(plan, case, attempts, runner=runner, absent=absent) for runner in runners]
    return min(found, key=lambda status: (not status.failed, status.outcome is not Outcome.NOT_RUN))


def _judge_run(
    plan: PlannedCell,
    case: PlannedCase,
    attempts: Mapping[tuple[str, str], list[CaseRecord]],
    *,
    runner: str,
    absent: str,
) -> CaseStatus:
    shared_with = runner if runner != plan.cell else None
    records = attempts.get((runner, case.case))
    without_evidence = plan.evidence is None
    if not records or (without_evidence and shared_with):
        reason = (plan.reason or NO_EVIDENCE) if without_evidence else absent
        return CaseStatus(case=case.case, outcome=Outcome.NOT_RUN, shared_with=shared_with, reason=reason)
    record = _standing(records)
    flags = set(record.flags)
    if record.outcome is Outcome.PASSED:
        if record.examples == 0:
            flags.add(Flag.SMOKE)
        if any(_is_failure(other) for other in records):
            flags.add(Flag.FLAKY)
    return CaseStatus(
        case=case.case,
        outcome=record.outcome,
        flags=tuple(sorted(flags)),
        shared_with=shared_with,
        reason=record.message if record.outcome is Outcome.NOT_RUN else "",
        record=record,
    )


def _standing(records: list[CaseRecord]) -> CaseRecord:
    """Return the attempt that counts; of several with one number the failure does."""
    final = [record for record in records if _is_failure(record) and not _may_be_retried(record)]
    return max(final or records, key=lambda record: (record.attempt, _is_failure(record)))


def _is_failure(record: CaseRecord) -> bool:
    return record.outcome not in (Outcome.PASSED, Outcome.NOT_RUN)


def _may_be_retried(record: CaseRecord) -> bool:
    return record.failure_class is not None and record.failure_class.retried
