"""Synthetic runs: bundles of any size and outcome, without training anything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.results.bundle import Bundle, BundleWriter, read_bundle
from harness.results.records import (
    CaseRecord,
    Exclusion,
    Machine,
    PlannedCase,
    PlannedCell,
    Record,
    RunHeader,
    StepRecord,
)
from harness.results.vocabulary import Evidence, FailureClass, Flag, Outcome, PlanState

MONDAY = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)  # of 2026-W49
CELLS = (
    "cpu/qwen3/grpo/sync/native/dp1",
    "cpu/qwen3/ppo/sync/native/dp1",
    "cpu/qwen3.5/grpo/sync/native/dp1",
    "cpu/qwen3.5/ppo/sync/native/dp1",
    "cpu/gemma4/grpo/sync/native/dp1",
    "cpu/gemma4/ppo/sync/native/dp1",
    "cpu/qwen3/grpo/sync/native/dp2",
)
CASES = (
    "rollout.empty-sequence",
    "rollout.logprob-agrees",
    "sockets.one-peer-each",
    "loss.split-invariant",
    "loss.matches-oracle",
    "logprob.layout-invariant",
    "train.learns",
    "train.repeats",
    "weights.buffers-synced",
    "advantage.stable-and-equal",
)
METRICS = ("reward", "kl", "entropy", "logprob_gap", "grad_norm", "clip_fraction", "step_seconds", "peak_bytes")
_AXES = ("hardware", "model", "algorithm", "mode", "engine", "topology")


def planned_cell(cell: str, cases: Sequence[str | PlannedCase] = CASES, **changes: Any) -> PlannedCell:
    planned = tuple(PlannedCase(case=one, state=PlanState.RUN) if isinstance(one, str) else one for one in cases)
    axes = dict(zip(_AXES, cell.split("/"), strict=False))
    fields: dict[str, Any] = {"subject": "reference", "size": "tiny", "dtype": "float32", "evidence": Evidence.DEVICE}
    return PlannedCell(cell=cell, axes=axes, cases=planned, **{**fields, **changes})


def shared(case: str, with_cell: str) -> PlannedCase:
    return PlannedCase(case=case, state=PlanState.SHARED, reason=f"runs in {with_cell}", shared_with=with_cell)


def header(planned: Sequence[PlannedCell], *, started: datetime = MONDAY, **changes: Any) -> RunHeader:
    fields: dict[str, Any] = {
        "run_id": f"{started:%Y%m%dT%H%M%SZ}",
        "suite": "smoke",
        "profile": "nightly",
        "started": started.isoformat(),
        "command": ["rl-gauntlet", "run", "smoke"],
        "commit": "0123456789abcdef",
        "versions": {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.19.0"},
        "machine": Machine(
            machine_class="xeon-2c",
            hostname="builder-1",
            cores=2,
            memory_bytes=8 << 30,
            cpu_capability="AVX512",
            system="Linux",
        ),
        "workers": 2,
        "threads_per_worker": 1,
        "seed": 20260101,
        "planned": tuple(planned),
        "excluded": (Exclusion(cell="cpu/gemma4/ppo/sync/native/dp2", reason="costs a minute and shows nothing new"),),
    }
    return RunHeader(**{**fields, **changes})


def case(run: RunHeader, cell: str, name: str, outcome: Outcome = Outcome.PASSED, **changes: Any) -> CaseRecord:
    failed = outcome not in (Outcome.PASSED, Outcome.NOT_RUN)
    fields: dict[str, Any] = {
        "subject": "reference",
        "size": "tiny",
        "dtype": "float32",
        "evidence": Evidence.DEVICE,
        "failure_class": FailureClass.CONTRACT if failed else None,
        "by_assertion": failed,
        "message": "expected a finite loss, saw nan" if failed else "",
        "seed": 7,
        "examples": 50,
        "seconds": 1.5,
        "overhead_seconds": 0.002,
        "peak_bytes": 700 << 20,
        "reproduce": f"rl-gauntlet run smoke --cell {cell} --case {name} --case-seed 7" if failed else "",
        "started": run.started,
    }
    return CaseRecord(run_id=run.run_id, cell=cell, case=name, outcome=outcome, **{**fields, **changes})


def steps(
    run: RunHeader, cell: str, name: str = "train.learns", *, seeds: Sequence[int] = (1, 2, 3), count: int = 12
) -> list[StepRecord]:
    """Curves that look like training: a reward that rises and levels off, a KL that grows."""

    def metrics(seed: int, step: int) -> dict[str, float | None]:
        progress = 1 - math.exp(-step / 5)
        wobble = 0.03 * math.sin(seed * 12.9 + step * 2.1)
        values = (
            0.35 + 0.5 * progress + wobble,
            0.02 * step + abs(wobble),
            1.8 - progress + wobble,
            3e-6 * (1 + abs(wobble)),
            1.0 + wobble,
            0.1 * progress,
            0.2 + abs(wobble),
            float(650 << 20),
        )
        return {**dict(zip(METRICS, values, strict=True)), "drafts_proposed": None}

    frame = {"size": "tiny", "dtype": "float32", "evidence": Evidence.DEVICE}
    return [
        StepRecord(run_id=run.run_id, cell=cell, case=name, seed=seed, step=step, metrics=metrics(seed, step), **frame)
        for seed in seeds
        for step in range(count)
    ]


def bundle(folder: Path, run: RunHeader, records: Iterable[Record], *, end: int | None = 0) -> Bundle:
    """Write and read back a bundle. `end` None leaves it as a killed run would."""
    writer = BundleWriter(folder, run)
    for record in records:
        writer.append(record)
    if end is not None:
        writer.finish(end)
    return read_bundle(folder)


def night(
    folder: Path,
    *,
    started: datetime = MONDAY,
    cells: Sequence[str] = CELLS,
    cases: Sequence[str] = CASES,
    outcomes: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    with_steps: bool = True,
    **changes: Any,
) -> Bundle:
    """One whole run in which everything passes, but for what `outcomes` says of a (cell, case)."""
    run = header([planned_cell(cell, cases) for cell in cells], started=started, **changes)
    records: list[Record] = []
    for cell in cells:
        for name in cases:
            special = dict((outcomes or {}).get((cell, name), {}))
            records.append(case(run, cell, name, **special))
        if with_steps and "train.learns" in cases:
            records += steps(run, cell)
    return bundle(folder, run, records)


def week(folder: Path, *, monday: datetime = MONDAY, nights: int = 7) -> list[Bundle]:
    """Seven cells, ten cases, seven nights: one cell breaks midweek, one is flaky, one case comes and goes."""
    bundles = []
    for day in range(nights):
        outcomes: dict[tuple[str, str], dict[str, Any]] = {}
        if day >= 3:
            outcomes[CELLS[2], "logprob.layout-invariant"] = {
                "outcome": Outcome.FAILED,
                "failure_class": FailureClass.NUMERICS_DRIFT,
                "message": "left padding moved a log-prob by 7.39, the bound is 3.6e-4",
                "shrunk_input": {"side": "left", "lengths": [3, 1]},
            }
        if day == 1:
            outcomes[CELLS[5], "train.learns"] = {"outcome": Outcome.TIMEOUT, "failure_class": FailureClass.HANG_SLOW}
        if day == 4:
            outcomes[CELLS[6], "sockets.one-peer-each"] = {"flags": (Flag.FLAKY,), "attempt": 2}
        started = monday + timedelta(days=day)
        bundles.append(night(folder / f"{started:%Y%m%d}", started=started, outcomes=outcomes, commit=f"{day:x}" * 16))
    return bundles
