"""`rl-gauntlet run SUITE`: run the selected cells, leave a bundle, say how each cell stands."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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
from harness.results.records import Record, RunHeader
from harness.results.summary import Summary, summarise

if TYPE_CHECKING:
    from harness.execution.local import CellWork, Settings


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
    """Run a suite and leave a bundle.

    Exit codes: 0 all selected cells passed, 1 a cell failed, 2 the request was wrong, 3 nothing was measured.
    """
    from harness.cases.registry import all_cases
    from harness.execution.header import new_header, new_run_id
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
    summary = _recorded(header, work, settings, folder=folder, quiet=as_json)
    if as_json:
        print_json(as_data(summary, folder))
    else:
        _show(summary, folder, mutant=mutant)
    raise typer.Exit(int(summary.exit_code))


def _recorded(header: RunHeader, work: Sequence[CellWork], settings: Settings, *, folder: Path, quiet: bool) -> Summary:
    """Run it, record by record; what is returned is read back from disk. Raises Stopped on Ctrl-C and SIGTERM."""
    from rich.console import Console

    from harness.cli.progress import RunProgress
    from harness.execution.local import execute

    writer = BundleWriter(folder, header)
    records: list[Record] = []

    def keep(record: Record) -> None:
        writer.append(record)
        records.append(record)
        progress.recorded(record)

    signal.signal(signal.SIGTERM, _stop)
    with RunProgress(Console(), sum(len(entry.cases) for entry in work), quiet=quiet) as progress:
        try:
            execute(work, settings, on_record=keep, on_start=progress.started)
        except KeyboardInterrupt:
            raise Stopped(f'stopped after {len(records)} records, which are kept in "{folder}"') from None
    writer.finish(int(summarise(header, records).exit_code))
    return summarise(header, read_bundle(folder).records)


def _show(summary: Summary, folder: Path, *, mutant: str | None) -> None:
    from rich.console import Console

    from harness.cli.tables import print_cells

    console = Console()
    print_cells(console, summary)
    for line in (*failure_lines(summary), *mutant_lines(summary, mutant), f"bundle: {folder}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


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


def mutant_lines(summary: Summary, mutant: str | None) -> Iterator[str]:
    """That a defect was in place, and how often its code ran: green with it says nothing of the sound code."""
    if mutant is not None:
        counted = [status.record.mutant_hits or 0 for cell in summary.cells for status in cell.cases if status.record]
        yield f"with the mutant {mutant} in place, whose code ran {max(counted, default=0)} times or more"


class Stopped(UserError):
    """The run was stopped on the way: what it recorded is kept, and no verdict is given."""

    exit_code = 130  # as a shell says of a command that Ctrl-C ended


def _stop(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
