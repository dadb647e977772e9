"""What a run shows while it runs: a bar on a terminal, a line a case elsewhere, nothing where a program reads."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.cases.base import Case
from harness.matrix.cell import Cell
from harness.results.records import CaseRecord, Record
from harness.results.vocabulary import Outcome


class RunProgress:
    """Told of each start and each record, one at a time. Use as a context manager."""

    def __init__(self, console: Console, total: int, *, quiet: bool = False) -> None:
        self._console, self._quiet, self._total, self._done = console, quiet, total, 0
        self._running: dict[str, str] = {}
        self._bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("starting", total=total)

    def started(self, cell: Cell, case: Case) -> None:
        self._running[cell.id] = case.id
        if self._bar is not None:
            self._bar.update(self._task, description=self._now())

    def recorded(self, record: Record) -> None:
        if not isinstance(record, CaseRecord) or self._quiet:
            return
        if record.attempt == 1:
            self._done += 1
            self._running.pop(record.cell, None)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=self._now())
        if self._bar is None or record.outcome is not Outcome.PASSED:
            self._console.print(self._line(record), markup=False, highlight=False, soft_wrap=True)

    def _now(self) -> str:
        return ", ".join(f"{cell} {case}" for cell, case in self._running.items())

    def _line(self, record: CaseRecord) -> str:
        ending = f"{record.outcome} ({record.failure_class})" if record.failure_class else str(record.outcome)
        detail = f": {record.message.splitlines()[0]}" if record.message and record.failure_class else ""
        counted = f", {record.examples} examples" if record.examples > 1 else ""
        return (
            f"[{self._done}/{self._total}] {record.cell} {record.case} {ending} {record.seconds:.1f} s{counted}{detail}"
        )

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
