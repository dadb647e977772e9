"""What the harness itself costs, measured by a real smoke run: `nox -s bench`.

Prints one JSON object. Times are of this machine, whose class stands beside them; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.cases.registry import all_cases
from harness.execution import processes
from harness.execution.child import ChildStart
from harness.execution.limits import Limits, usable_cores
from harness.execution.nursery import Nursery
from harness.hardware.machine import cpu_model, machine_class
from harness.matrix.plan import make_plan
from harness.matrix.selection import Selection
from harness.results.bundle import read_bundle
from harness.results.records import CaseRecord
from harness.subjects.registry import build_subject

_STARTS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="smoke")
    parser.add_argument("--skip-run", action="store_true", help="measure only how long a cell takes to start")
    asked = parser.parse_args()
    result: dict[str, Any] = {"machine_class": machine_class(cpu_model(), cores=usable_cores()), "suite": asked.suite}
    with tempfile.TemporaryDirectory() as folder:
        result["cell_start"] = cell_start(asked.suite, Path(folder))
        if not asked.skip_run:
            result["run"] = whole_run(asked.suite, Path(folder) / "bundle")
    print(json.dumps(result, indent=2))


def cell_start(suite: str, folder: Path) -> Mapping[str, float]:
    """Seconds from asking for a child to its subject being built, per start; the first pays the imports."""
    plan = make_plan(suite, Selection(), cases=all_cases())
    cell = plan.by_id[plan.runnable[0].cell]
    seconds = []
    with Nursery(threads=1) as nursery:
        for number in range(_STARTS + 1):
            start = ChildStart(cell=cell, log=folder / f"{number}.log", threads=1, process_bytes=Limits().process_bytes)
            began = time.perf_counter()
            child = nursery.start(start, seconds=120)
            seconds.append(time.perf_counter() - began)
            child.kill()
    began = time.perf_counter()
    build_subject(cell, threads=1).close()
    first_build = time.perf_counter() - began
    began = time.perf_counter()
    build_subject(cell, threads=1).close()
    return {
        "first_child_seconds": round(seconds[0], 4),
        "later_child_seconds_median": round(statistics.median(seconds[1:]), 4),
        "subject_build_seconds_with_imports": round(first_build, 4),
        "subject_build_seconds": round(time.perf_counter() - began, 4),
    }


def whole_run(suite: str, bundle: Path) -> Mapping[str, Any]:
    """Wall time and memory of `rl-gauntlet run`, and what its records say of overhead."""
    command = [sys.executable, "-m", "harness.cli.main", "run", suite, "--bundle", str(bundle)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        held = sum(processes.proportional_bytes(pid) for pid in processes.members(roots=[process.pid]))
        peak = max(peak, held)
        time.sleep(0.25)
    wall = time.perf_counter() - began
    records = [record for record in read_bundle(bundle).records if isinstance(record, CaseRecord)]
    overheads = sorted(record.overhead_seconds for record in records)
    return {
        "exit_code": process.returncode,
        "wall_seconds": round(wall, 1),
        "peak_gib_of_all_processes": round(peak / 1024**3, 2),
        "cases": len(records),
        "overhead_ms_median": round(1000 * statistics.median(overheads), 2),
        "overhead_ms_worst": round(1000 * overheads[-1], 2),
        "slowest_cases": {
            f"{record.cell} {record.case}": round(record.seconds, 1)
            for record in sorted(records, key=lambda record: -record.seconds)[:5]
        },
    }


if __name__ == "__main__":
    main()
