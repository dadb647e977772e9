from __future__ import annotations

import io

from rich.console import Console

from harness.cli.tables import cell_lines, print_cells
from harness.results.summary import summarise
from harness.results.vocabulary import Flag, Outcome
from tests.reports.builders import CELLS, case, header, planned_cell

A, B, C = CELLS[:3]


def mixed_run():
    run = header(
        [
            planned_cell(A, ["x.y", "x.z"]),
            planned_cell(B, ["x.y"]),
            planned_cell("[red]x[/red]", ["x.y"], evidence=None),
        ]
    )
    records = [
        case(run, A, "x.y", Outcome.OOM),
        case(run, A, "x.z", Outcome.TIMEOUT),
        case(run, B, "x.y", flags=(Flag.FLAKY,), attempt=2),
    ]
    return summarise(run, records)


def test_plain_lines_give_every_cell_its_verdict_its_denominator_and_why():
    lines = cell_lines(mixed_run())
    assert lines[0] == "1 of 3 cells passed, 1 of 4 planned cases passed; the run was cut short"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[2:]}
    assert rows[A] == "tiny device failed 0 of 2 x.y out of memory, x.z timed out"
    assert rows[B] == "tiny device passed 1 of 1 x.y flaky"
    assert rows["[red]x[/red]"] == "tiny none not run 0 of 1 this machine can give no evidence for it"


def test_a_terminal_gets_a_table_and_anything_else_plain_lines():
    summary = mixed_run()
    terminal, pipe = io.StringIO(), io.StringIO()
    print_cells(Console(file=terminal, force_terminal=True, width=200), summary)
    print_cells(Console(file=pipe, width=40), summary)
    assert "\x1b[" in terminal.getvalue()
    assert "[red]x[/red]" in terminal.getvalue()
    assert pipe.getvalue().splitlines() == cell_lines(summary)
