"""A run's cells as a table: coloured on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.results.summary import CellSummary, Summary
from harness.results.vocabulary import Flag, Outcome, Verdict

_STYLES = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.INCOMPLETE: "yellow",
    Verdict.NOT_RUN: "yellow",
    Verdict.SMOKE_ONLY: "cyan",
}
_COLUMNS = ("cell", "size", "evidence", "verdict", "cases passed", "why")


def cell_table(summary: Summary) -> Table:
    """One row a cell. Text from records is shown as it is, never read as markup."""
    table = Table(*_COLUMNS, title=verdict_line(summary), title_justify="left", title_style="bold")
    for cell in summary.cells:
        words = _words(cell)
        table.add_row(*(Text(word, style=_STYLES[cell.verdict] if word is words[3] else "") for word in words))
    return table


def cell_lines(summary: Summary) -> list[str]:
    """The same in plain lines, columns lined up."""
    rows = [_COLUMNS, *(_words(cell) for cell in summary.cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [verdict_line(summary), *lines]


def print_cells(console: Console, summary: Summary) -> None:
    """The table on a terminal, the lines anywhere else."""
    if console.is_terminal:
        console.print(cell_table(summary))
    else:
        for line in cell_lines(summary):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict_line(summary: Summary) -> str:
    """What the run came to, with its denominators."""
    cells = f"{summary.verdicts[Verdict.PASSED]} of {len(summary.cells)} cells passed"
    cases = f"{summary.cases_passed} of {summary.cases_planned} planned cases passed"
    return f"{cells}, {cases}" + ("" if summary.complete else "; the run was cut short")


def _words(cell: CellSummary) -> tuple[str, ...]:
    return (
        cell.cell,
        cell.plan.size,
        cell.evidence or "none",
        cell.verdict.replace("_", " "),
        f"{cell.passed} of {len(cell.cases)}",
        _why(cell),
    )


def _why(cell: CellSummary) -> str:
    notes = [f"{status.case} {_outcome(status.outcome)}" for status in cell.cases if status.failed]
    notes += [f"{status.case} flaky" for status in cell.cases if Flag.FLAKY in status.flags]
    if cell.reason:
        notes.append(cell.reason)
    return ", ".join(notes)


def _outcome(outcome: Outcome) -> str:
    return {Outcome.OOM: "out of memory", Outcome.TIMEOUT: "timed out"}.get(outcome, outcome.value)
