"""Who kills whom: each mutant against the case that must catch it, in a fresh child, beside the sound trainer.

A kill is the case's own assertion failing with a class it declares while the mutant's code ran. Anything else that goes
red, an exception on the way say, is no kill. A mutant of one model or topology must leave a cell of another one green.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

from harness.cases.base import Case
from harness.execution.local import CellWork, Settings, asked_of, session_of
from harness.execution.nursery import Nursery
from harness.execution.session import Interrupted
from harness.matrix.plan import Plan
from harness.mutants.base import Mutant
from harness.results.records import CaseRecord, PlannedCell
from harness.results.vocabulary import Outcome, PlanState


class KillVerdict(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"  # the case passed with the defect in place
    NOT_BY_ASSERTION = "not by assertion"  # red, but not by the case's own assertion with a class it declares
    NEVER_RAN = "never ran"  # the defective code was not reached: red or green says nothing
    NOT_SPARED = "not spared"  # it turned a cell red that it does not break
    UNSOUND = "unsound"  # the case fails without the mutant
    NOWHERE = "nowhere"  # no selected cell that can run here has its case and what it breaks


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One row of the matrix."""

    mutant: str
    case: str
    defect: str
    verdict: KillVerdict
    cell: str | None = None
    spared: str | None = None  # a cell that it must leave green, and did
    message: str = ""
    hits: int | None = None
    seconds: float = 0.0
    reproduce: str = ""


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """One case in one cell, with or without a mutant."""

    case: str
    cell: str
    mutant: str | None = None


def kill_matrix(
    plan: Plan,
    mutants: Sequence[Mutant],
    settings: Settings,
    *,
    cases: Mapping[str, Case],
    on_row: Callable[[Kill], None],
) -> list[Kill]:
    """Run it; rows come to `on_row` as they are known, and are returned in the order of `mutants`."""
    where = {mutant.name: _places(mutant, plan) for mutant in mutants}
    trials: dict[_Trial, CaseRecord] = {}
    lock = threading.Lock()
    rows: dict[str, Kill] = {}

    with Nursery(threads=settings.limits.threads) as nursery, ThreadPoolExecutor(settings.workers) as pool:

        def run(trial: _Trial) -> CaseRecord:
            entry = next(cell for cell in plan.cells if cell.cell == trial.cell)
            work = CellWork(cell=plan.by_id[trial.cell], planned=entry, cases=(cases[trial.case],))
            mine = replace(settings, mutant=trial.mutant)
            session = session_of(nursery, work, mine, on_step=lambda step: None)
            try:
                return session.run(asked_of(cases[trial.case], work.cell, mine))[-1]
            finally:
                session.close()

        def judge(mutant: Mutant) -> None:
            target, bystander = where[mutant.name]
            if target is None:
                row = _row(mutant, KillVerdict.NOWHERE, message="no selected cell has its case and what it breaks")
            else:
                sound = trials[_Trial(case=mutant.case, cell=target)]
                try:
                    row = _judged(mutant, cases[mutant.case], sound, run, target=target, bystander=bystander)
                except Interrupted:
                    return
            with lock:
                rows[mutant.name] = row
                on_row(row)

        def baseline(trial: _Trial) -> None:
            try:
                record = run(trial)
            except Interrupted:
                return
            with lock:
                trials[trial] = record

        try:
            sound_trials = {
                _Trial(case=mutant.case, cell=target) for mutant in mutants if (target := where[mutant.name][0])
            }
            for _ in pool.map(baseline, sorted(sound_trials, key=lambda trial: (trial.cell, trial.case))):
                pass
            for _ in pool.map(judge, mutants):
                pass
        except BaseException:
            nursery.kill_children()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [rows[mutant.name] for mutant in mutants]


def _judged(
    mutant: Mutant,
    case: Case,
    sound: CaseRecord,
    run: Callable[[_Trial], CaseRecord],
    *,
    target: str,
    bystander: str | None,
) -> Kill:
    if sound.outcome is not Outcome.PASSED:
        return _row(mutant, KillVerdict.UNSOUND, cell=target, message=f"without the mutant: {sound.message}")
    record = run(_Trial(case=case.id, cell=target, mutant=mutant.name))
    verdict, message = _verdict(record, case)
    spared = None
    if verdict is KillVerdict.KILLED and bystander is not None:
        beside = run(_Trial(case=case.id, cell=bystander, mutant=mutant.name))
        if beside.outcome is Outcome.PASSED:
            spared = bystander
        else:
            verdict, message = KillVerdict.NOT_SPARED, f"{bystander} went red too: {beside.message}"
    return _row(
        mutant,
        verdict,
        cell=target,
        spared=spared,
        message=message,
        hits=record.mutant_hits,
        seconds=record.seconds,
        reproduce=record.reproduce,
    )


def _verdict(record: CaseRecord, case: Case) -> tuple[KillVerdict, str]:
    if not record.mutant_hits:
        return KillVerdict.NEVER_RAN, record.message
    if record.outcome is Outcome.PASSED:
        return KillVerdict.SURVIVED, f"{case.id} passed {record.examples} examples with the defect in place"
    if not record.by_assertion or record.failure_class not in {case.failure_class, *case.other_classes}:
        return KillVerdict.NOT_BY_ASSERTION, f"{record.outcome} ({record.failure_class}): {record.message}"
    return KillVerdict.KILLED, record.message


def _places(mutant: Mutant, plan: Plan) -> tuple[str | None, str | None]:
    """The first cell where it must be caught, and the first that it must spare (None when it breaks every cell)."""
    having = [cell for cell in plan.cells if cell.evidence is not None and _has(cell, mutant.case)]
    target = next((cell.cell for cell in having if mutant.breaks(cell.axes)), None)
    bystander = next((cell.cell for cell in having if not mutant.breaks(cell.axes)), None)
    return target, bystander


def _has(cell: PlannedCell, case: str) -> bool:
    return any(one.case == case and one.state is not PlanState.NOT_APPLICABLE for one in cell.cases)


def _row(mutant: Mutant, verdict: KillVerdict, **rest: object) -> Kill:
    return Kill(mutant=mutant.name, case=mutant.case, defect=mutant.defect, verdict=verdict, **rest)  # type: ignore[arg-type]


def all_killed(rows: Iterable[Kill]) -> bool:
    """Whether there was something to kill and all of it was."""
    verdicts = [row.verdict for row in rows]
    return bool(verdicts) and all(verdict is KillVerdict.KILLED for verdict in verdicts)
