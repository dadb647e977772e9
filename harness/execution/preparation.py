"""From a plan and a request to the settings of a run. What does not fit together is refused before anything starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import NothingMeasuredError, RequestError, nearest
from harness.execution.limits import GIB, Limits, threads_per_worker, usable_cores
from harness.execution.local import CellWork, Settings, work_of
from harness.execution.profiles import profile_named, run_seed
from harness.matrix.plan import Plan
from harness.matrix.schema import SuiteLimits
from harness.mutants.registry import all_mutants


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked for beside suite and selection. None and 0 mean: not said."""

    profile: str = "pr"
    workers: int = 0
    seed: int | None = None
    case_seed: int | None = None
    examples: int | None = None
    input_json: str | None = None
    mutant: str | None = None
    time_scale: float | None = None
    matrices: str | None = None


def prepare(
    plan: Plan, request: Request, *, cases: dict[str, Any], run_id: str, folder: Path
) -> tuple[list[CellWork], Settings]:
    """Raises RequestError for a request that contradicts itself, NothingMeasuredError when nothing would run."""
    profile = profile_named(request.profile)
    if request.mutant is not None and request.mutant not in all_mutants():
        raise RequestError(f'there is no mutant "{request.mutant}"; {nearest(request.mutant, all_mutants())}')
    if request.seed is not None and request.seed < 0:
        raise RequestError(f"--seed is {request.seed}; it must be 0 or more")
    for name, value in (("--examples", request.examples), ("--workers", request.workers or None)):
        if value is not None and value < 1:
            raise RequestError(f"{name} is {value}; it must be 1 or more")
    if request.time_scale is not None and not 0 < request.time_scale < float("inf"):
        raise RequestError(f"--time-scale is {request.time_scale}; it must be above 0")
    work = work_of(plan.cells, plan.by_id, cases)
    if not work:
        raise NothingMeasuredError(_why_nothing(plan))
    data = None if request.input_json is None else _parsed_input(request.input_json)
    runs = sum(len(entry.cases) for entry in work)
    if (data is not None or request.case_seed is not None) and runs != 1:
        raise RequestError(
            f"--input and --case-seed reproduce one case in one cell, and {runs} are selected; add --cell and --case"
        )
    if data and work[0].cases[0].examples == 1:
        raise RequestError(f"--input is for cases that draw inputs, and {work[0].cases[0].id} takes none; leave it out")
    workers = min(request.workers or usable_cores(), len(work))
    return work, Settings(
        run_id=run_id,
        suite=plan.asked,
        seed=run_seed(profile, request.seed),
        workers=workers,
        limits=limits_of(plan.limits, workers=workers, time_scale=request.time_scale),
        logs=folder / "logs",
        examples_scale=profile.examples_scale,
        case_seed=request.case_seed,
        examples=request.examples,
        data=data,
        mutant=request.mutant,
        matrices=request.matrices,
    )


def limits_of(suite: SuiteLimits, *, workers: int, time_scale: float | None = None) -> Limits:
    """The executor's limits, as far as the suite does not say otherwise; a person's time scale beats the suite's."""
    usual = Limits()
    return Limits(
        threads=threads_per_worker(workers),
        process_bytes=int(suite.process_gib * GIB) if suite.process_gib else usual.process_bytes,
        group_bytes=int(suite.group_gib * GIB) if suite.group_gib else usual.group_bytes,
        time_scale=time_scale or suite.time_scale or usual.time_scale,
    )


def _parsed_input(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--input is not JSON ({error}); paste the line that the failed record gives") from None
    if not isinstance(data, dict):
        raise RequestError(f"--input is {text[:60]!r}; it must be a JSON object, as the failed record gives it")
    return data


def _why_nothing(plan: Plan) -> str:
    for cell in plan.cells:
        if cell.evidence is None:
            return f"nothing can be measured: {cell.cell} cannot run here ({cell.reason})"
        for case in cell.cases:
            return f"nothing can be measured: {case.case} does not apply to {cell.cell} ({case.reason})"
    return f"nothing can be measured: suite {plan.suite} has nothing to run"
