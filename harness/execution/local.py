"""The local executor: cells side by side on this machine, one child each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cases.base import Case
from harness.execution.limits import Limits
from harness.execution.nursery import Nursery
from harness.execution.recording import Asked, Frame
from harness.execution.reproduce import reproduce_command
from harness.execution.seeds import derived_seed
from harness.execution.session import CellSession, Interrupted
from harness.matrix.cell import Cell
from harness.results.records import PlannedCell, Record, StepRecord
from harness.results.vocabulary import PlanState


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is asked for, beside which cells and cases."""

    run_id: str
    suite: str
    seed: int
    workers: int
    limits: Limits
    logs: Path
    examples_scale: float = 1.0
    case_seed: int | None = None  # replaces the derived one: to reproduce a failure
    examples: int | None = None  # replaces the case's own number: to reproduce a failure
    data: dict[str, Any] | None = None
    mutant: str | None = None
    matrices: str | None = None


@dataclass(frozen=True, kw_only=True)
class CellWork:
    """One cell and the cases that run in it."""

    cell: Cell
    planned: PlannedCell
    cases: Sequence[Case]

    @property
    def cost(self) -> float:
        """A guess, only to start the longest cells first."""
        return sum(case.seconds for case in self.cases)


def work_of(planned: Iterable[PlannedCell], cells: Mapping[str, Cell], cases: Mapping[str, Case]) -> list[CellWork]:
    """What is to be run of a plan: cells that this machine has evidence for, with the cases they run themselves."""
    work = []
    for entry in planned:
        own = [cases[one.case] for one in entry.cases if one.state is PlanState.RUN]
        if entry.evidence is not None and own:
            work.append(CellWork(cell=cells[entry.cell], planned=entry, cases=own))
    return work


def session_of(
    nursery: Nursery, work: CellWork, settings: Settings, *, on_step: Callable[[StepRecord], None]
) -> CellSession:
    """The session that runs a cell's cases, and that knows how each of its failures is reproduced."""
    assert work.planned.evidence is not None

    def reproduce(asked: Asked, shrunk: dict[str, Any] | None) -> str:
        return reproduce_command(
            suite=settings.suite,
            cell=work.cell.id,
            case=asked.case.id,
            seed=asked.seed,
            examples=asked.examples,
            shrunk_input=shrunk,
            mutant=settings.mutant,
            matrices=settings.matrices,
        )

    frame = Frame(
        run_id=settings.run_id,
        cell=work.cell,
        evidence=work.planned.evidence,
        logs=settings.logs,
        limits=settings.limits,
        mutant=settings.mutant,
        reproduce=reproduce,
    )
    return CellSession(nursery, frame, on_step=on_step)


def asked_of(case: Case, cell: Cell, settings: Settings) -> Asked:
    """The seed follows from the run's seed, the case and what it reads of the cell, whatever runs beside it."""
    derived = derived_seed(settings.seed, case.id, *cell.projection(case.axes))
    scaled = case.examples if case.examples == 1 else max(1, round(case.examples * settings.examples_scale))
    return Asked(
        case=case,
        seed=derived if settings.case_seed is None else settings.case_seed,
        examples=scaled if settings.examples is None else settings.examples,
        data=settings.data,
    )


def execute(
    work: Sequence[CellWork],
    settings: Settings,
    *,
    on_record: Callable[[Record], None],
    on_start: Callable[[Cell, Case], None] = lambda cell, case: None,
) -> None:
    """Run all of it; `on_record` and `on_start` are called one at a time, whatever the number of workers.

    Raises KeyboardInterrupt when interrupted, after every child has been ended.
    """
    lock = threading.Lock()

    def emit(record: Record) -> None:
        with lock:
            on_record(record)

    def one_cell(nursery: Nursery, entry: CellWork) -> None:
        session = session_of(nursery, entry, settings, on_step=emit)
        try:
            for case in entry.cases:
                if nursery.stopping.is_set():
                    return
                with lock:
                    on_start(entry.cell, case)
                for record in session.run(asked_of(case, entry.cell, settings)):
                    emit(record)
        except Interrupted:
            return
        finally:
            session.close()

    ordered = sorted(work, key=lambda entry: -entry.cost)
    with Nursery(threads=settings.limits.threads) as nursery, ThreadPoolExecutor(settings.workers) as pool:
        futures = [pool.submit(one_cell, nursery, entry) for entry in ordered]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            # Ctrl-C, a full disk, a bug: nothing may go on behind our back while the pool is waited for.
            nursery.kill_children()
            for future in futures:
                future.cancel()
            raise
