"""`rl-gauntlet run SUITE`: run the selected cells, leave a bundle, say how each cell stands."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from harness.cli.output import print_json
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
from harness.errors import UserError
from harness.results import paths
from harness.results.bundle import BundleWriter, read_bundle
from harness.results.records import Record
from harness.results.summary import Summary, summarise


def run(
    suite: SuiteArgument,
    workers: Annotated[int, typer.Option("-n", "--workers", help="Cells side by side; 0: one a core.")] = 0,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the records go; bundles/RUN_ID when not said.")
    ] = None,
    profile: Annotated[str, typer.Option(help="pr: derandomised; nightly: explores; weekly: explores long.")] = "pr",
    seed: Annotated[int | None, typer.Option(help="The run's seed, which all others derive from.")] = None,
    time_scale: Annotated[float | None, typer.Option(help="Stretch every case's time-out, for a slow machine.")] = None,
    mutant: Annotated[str | None, typer.Option(metavar="NAME", help="Run with this defect in place.")] = None,
    case_seed: Annotated[int | None, typer.Option(help="Reproduce: the seed of the one case selected.")] = None,
    examples: Annotated[int | None, typer.Option(help="Reproduce: how many inputs to draw.")] = None,
    input_json: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="Reproduce: judge this one input.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")
    ] = False,
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
    """Run a suite and leave a bundle. 0: all selected cells passed, 1: a cell failed, 3: nothing was measured."""
    from rich.console import Console

    from harness.cases.registry import all_cases
    from harness.cli.progress import RunProgress
    from harness.cli.tables import print_cells
    from harness.execution.header import new_header, new_run_id
    from harness.execution.local import execute
    from harness.execution.preparation import Request, prepare
    from harness.matrix.plan import make_plan

    selection = selection_of(
        hardware=hardware,
        model=model,
        algorithm=algorithm,
        mode=mode,
        engine=engine,
        topology=topology,
        cell=cell,
        case=case,
    )
    cases = all_cases()
    plan = make_plan(suite, selection, cases=cases, folder=matrices)
    run_id = new_run_id()
    folder = bundle or paths.bundle_folder(run_id)
    request = Request(
        profile=profile,
        workers=workers,
        seed=seed,
        case_seed=case_seed,
        examples=examples,
        input_json=input_json,
        mutant=mutant,
        time_scale=time_scale,
        matrices=None if matrices == DEFAULT_MATRICES else str(matrices),
    )
    work, settings = prepare(plan, request, cases=cases, run_id=run_id, folder=folder)
    header = new_header(
        plan,
        run_id=run_id,
        profile=profile,
        seed=settings.seed,
        workers=settings.workers,
        threads_per_worker=settings.limits.threads,
        command=["rl-gauntlet", *sys.argv[1:]],
        mutant=mutant,
        reproduction=any(given is not None for given in (input_json, case_seed, examples)),
    )
    writer = BundleWriter(folder, header)
    records: list[Record] = []

    def keep(record: Record) -> None:
        writer.append(record)
        records.append(record)
        progress.recorded(record)

    console = Console()
    signal.signal(signal.SIGTERM, _stop)
    with RunProgress(console, sum(len(entry.cases) for entry in work), quiet=as_json) as progress:
        try:
            execute(work, settings, on_record=keep, on_start=progress.started)
        except KeyboardInterrupt:
            raise Stopped(f'stopped after {len(records)} records, which are kept in "{folder}"') from None
    code = summarise(header, records).exit_code
    writer.finish(int(code))
    summary = summarise(header, read_bundle(folder).records)  # what is shown is what lies on disk
    if as_json:
        print_json(as_data(summary, folder))
    else:
        print_cells(console, summary)
        for line in failure_lines(summary):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(f"bundle: {folder}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(code))


def as_data(summary: Summary, folder: Path) -> dict[str, Any]:
    """How the run stands, for a program."""
    return {
        "run_id": summary.run_id,
        "bundle": str(folder),
        "exit_code": int(summary.exit_code),
        "cases_passed": summary.cases_passed,
        "cases_planned": summary.cases_planned,
        "cells": [
            {
                "cell": cell.cell,
                "size": cell.plan.size,
                "verdict": str(cell.verdict),
                "evidence": cell.evidence,
                "reason": cell.reason,
                "cases": [
                    {
                        "case": status.case,
                        "outcome": str(status.outcome),
                        "class": status.record.failure_class if status.record else None,
                        "flags": list(status.flags),
                        "shared_with": status.shared_with,
                        "message": status.record.message if status.record else status.reason,
                        "reproduce": status.record.reproduce if status.record else "",
                    }
                    for status in cell.cases
                ],
            }
            for cell in summary.cells
        ],
    }


def failure_lines(summary: Summary) -> Iterator[str]:
    """Each failure once, with its class, what was seen, and the command that shows it alone."""
    for cell in summary.cells:
        for status in cell.cases:
            record = status.record
            if status.failed and record is not None and status.shared_with is None:
                yield f"{record.outcome} ({record.failure_class}): {record.cell} {record.case}"
                yield f"  {record.message}"
                yield f"  again: {record.reproduce}"


class Stopped(UserError):
    """The run was stopped on the way: what it recorded is kept, and no verdict is given."""

    exit_code = 130  # as a shell says of a command that Ctrl-C ended


def _stop(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
