"""The header of a run: what it means to do, where, and with which versions."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import NothingMeasuredError
from harness.hardware.machine import describe_machine, installed_versions
from harness.hardware.torch_facts import TorchUnusableError, ask_torch
from harness.matrix.plan import Plan
from harness.results.records import RunHeader


def new_run_id() -> str:
    """Unique, and sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def new_header(
    plan: Plan,
    *,
    run_id: str,
    profile: str,
    seed: int,
    workers: int,
    threads_per_worker: int,
    command: Sequence[str],
    mutant: str | None = None,
    reproduction: bool = False,
) -> RunHeader:
    """Raises NothingMeasuredError when torch cannot be used on this machine."""
    try:
        torch = ask_torch()
    except TorchUnusableError as error:
        raise NothingMeasuredError(f"torch cannot be used here: {error}; `rl-gauntlet doctor` says more") from None
    if not torch.canary_exact:
        raise NothingMeasuredError(
            "a product of small whole numbers came out wrong here; this machine's results are void"
        )
    return RunHeader(
        run_id=run_id,
        suite=plan.suite,
        profile=profile,
        started=datetime.now(UTC).isoformat(timespec="milliseconds"),
        command=[word.encode("utf-8", "backslashreplace").decode() for word in command],  # a path need not be text
        commit=project_commit(),
        versions={**installed_versions(), "torch": torch.version},
        machine=describe_machine(cpu_capability=torch.cpu_capability),
        workers=workers,
        threads_per_worker=threads_per_worker,
        seed=seed,
        mutant=mutant,
        reproduction=reproduction,
        planned=plan.cells,
        excluded=plan.excluded,
    )


def project_commit() -> str:
    """Commit of the tree that this code runs from, `+dirty` when tracked files differ, `unknown` outside git."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return "unknown"  # installed into some other repository's tree
        return git("rev-parse", "HEAD") + ("+dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
