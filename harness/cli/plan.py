"""`rl-gauntlet plan SUITE`: what would run on this machine, and why not the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.output import on_terminal, print_json, print_table
from harness.cli.selecting import (
    DEFAULT_MATRICES,
    AlgorithmOption,
    CaseOption,
    CellOption,
    EngineOption,
    HardwareOption,
    MatricesOption,
    ModelOption,
    ModeOption,
    SuiteArgument,
    TopologyOption,
    selection_of,
)
from harness.errors import ExitCode
from harness.results.vocabulary import PlanState

if TYPE_CHECKING:
    from harness.matrix.plan import Plan
    from harness.results.records import PlannedCell


def plan(
    suite: SuiteArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    matrices: MatricesOption = DEFAULT_MATRICES,
    hardware: HardwareOption = None,
    model: ModelOption = None,
    algorithm: AlgorithmOption = None,
    mode: ModeOption = None,
    engine: EngineOption = None,
    topology: TopologyOption = None,
    cell: CellOption = None,
    case: CaseOption = None,
) -> None:
    """What would run of a suite on this machine, and why not the rest. Exit code 3 when no cell can run."""
    # Hypothesis and numpy come with the cases; asking for help must not wait for them.
    from harness.cases.registry import all_cases
    from harness.matrix.plan import make_plan

    made = make_plan(
        suite,
        selection_of(
            hardware=hardware,
            model=model,
            algorithm=algorithm,
            mode=mode,
            engine=engine,
            topology=topology,
            cell=cell,
            case=case,
        ),
        cases=all_cases(),
        folder=matrices,
    )
    if as_json:
        print_json(as_data(made))
    elif on_terminal():
        _show_tables(made)
    else:
        print("\n".join(as_lines(made)))
    raise typer.Exit(ExitCode.PASSED if made.runnable else ExitCode.NOTHING_MEASURED)


def as_data(made: Plan) -> dict[str, Any]:
    """The plan for a program."""
    return {
        "suite": made.suite,
        "runnable": len(made.runnable),
        "cells": [cell.model_dump(mode="json") for cell in made.cells],
        "excluded": [one.model_dump(mode="json") for one in made.excluded],
    }


def as_lines(made: Plan) -> Iterable[str]:
    """The plan in plain text: a line a cell, and under it what runs and why not the rest."""
    for cell in made.cells:
        yield f"{cell.cell}  {_evidence(cell)}"
        yield from (f"  {text}" for text in _case_lines(cell))
    yield from (f"{one.cell}  left out: {one.reason}" for one in made.excluded)
    yield summary(made)


def summary(made: Plan) -> str:
    """The plan in one line."""
    runs = sum(case.state is PlanState.RUN for cell in made.cells for case in cell.cases)
    return (
        f"suite {made.suite}: {len(made.runnable)} of {len(made.cells)} cells can run here, with {runs} case runs; "
        f"{len(made.excluded)} combinations left out"
    )


def _evidence(cell: PlannedCell) -> str:
    if cell.evidence is None:
        return f"cannot run here: {cell.reason}"
    return f"{cell.evidence}" + (f" ({cell.reason})" if cell.reason else "")


def _case_lines(cell: PlannedCell) -> Iterable[str]:
    own = [case.case for case in cell.cases if case.state is PlanState.RUN]
    if own:
        yield "runs " + ", ".join(own)
    others: dict[str, list[str]] = {}
    for case in cell.cases:
        if case.state is not PlanState.RUN:
            others.setdefault(case.reason, []).append(case.case)
    for reason, names in others.items():
        yield f"not {', '.join(names)}: {reason}"


def _show_tables(made: Plan) -> None:
    print_table(
        ["cell", "evidence", "cases"],
        [[cell.cell, _evidence(cell), "\n".join(_case_lines(cell))] for cell in made.cells],
    )
    if made.excluded:
        print_table(["left out", "because"], [[one.cell, one.reason] for one in made.excluded])
    print(summary(made))
