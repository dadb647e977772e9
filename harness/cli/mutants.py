"""`rl-gauntlet mutants`: who kills whom."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.output import on_terminal, print_json, print_table
from harness.cli.selecting import (
    DEFAULT_MATRICES,
    AlgorithmOption,
    CaseOption,
    CellOption,
    HardwareOption,
    MatricesOption,
    ModelOption,
    TopologyOption,
    selection_of,
)
from harness.errors import ExitCode, RequestError, nearest


def mutants(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="The suite whose cells are used.")] = "smoke",
    mutant: Annotated[
        list[str] | None, typer.Option("--mutant", metavar="GLOB", help="Only these; may be given several times.")
    ] = None,
    workers: Annotated[int, typer.Option("-n", "--workers", help="Children side by side; 0: one a core.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The run's seed; fixed when not said.")] = None,
    time_scale: Annotated[float | None, typer.Option(help="Stretch every case's time-out.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")
    ] = False,
    matrices: MatricesOption = DEFAULT_MATRICES,
    hardware: HardwareOption = None,
    model: ModelOption = None,
    algorithm: AlgorithmOption = None,
    topology: TopologyOption = None,
    cell: CellOption = None,
    case: CaseOption = None,
) -> None:
    """Run each mutant against its own case. 0: all killed, 1: one was not, 3: there was nothing to kill."""
    from harness.cases.registry import all_cases
    from harness.execution.header import new_run_id
    from harness.execution.kill_matrix import Kill, KillVerdict, all_killed, kill_matrix
    from harness.execution.preparation import Request, prepare
    from harness.matrix.plan import make_plan
    from harness.mutants.registry import all_mutants

    selection = selection_of(
        hardware=hardware, model=model, algorithm=algorithm, topology=topology, cell=cell, case=case
    )
    cases = all_cases()
    plan = make_plan(suite, selection, cases=cases, folder=matrices)
    selected_cases = {one.case for entry in plan.cells for one in entry.cases}
    globs = mutant or ["*"]
    for glob in globs:
        if not any(sign in glob for sign in "*?[") and glob not in all_mutants():
            raise RequestError(f'there is no mutant "{glob}"; {nearest(glob, all_mutants())}')
    chosen = [
        one
        for one in all_mutants().values()
        if one.case in selected_cases and any(fnmatchcase(one.name, glob) for glob in globs)
    ]

    def show(row: Kill) -> None:
        if not as_json:
            why = "" if row.verdict is KillVerdict.KILLED else f": {row.message}"
            spared = f", {row.spared} spared" if row.spared else ""
            hits = f"{row.hits} hits" if row.hits is not None else "not run"
            typer.echo(f"{row.verdict}  {row.mutant} in {row.cell} ({hits}, {row.seconds:.1f} s{spared}){why}")

    with tempfile.TemporaryDirectory(prefix="rl-gauntlet-") as folder:
        request = Request(workers=workers, seed=seed, time_scale=time_scale)
        _, settings = prepare(plan, request, cases=cases, run_id=new_run_id(), folder=Path(folder))
        rows = kill_matrix(plan, chosen, settings, cases=cases, on_row=show)
    killed = sum(row.verdict is KillVerdict.KILLED for row in rows)
    if as_json:
        print_json({"killed": killed, "mutants": [asdict(row) for row in rows]})
    else:
        if on_terminal():
            columns = ["mutant", "defect", "killed by", "in", "verdict"]
            print_table(columns, [[row.mutant, row.defect, row.case, row.cell or "", row.verdict] for row in rows])
        print(f"{killed} of {len(rows)} mutants killed by their own case's assertion")
    if not rows:
        raise typer.Exit(ExitCode.NOTHING_MEASURED)
    raise typer.Exit(ExitCode.PASSED if all_killed(rows) else ExitCode.FAILED)
