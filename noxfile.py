"""Everything a person or CI runs; `nox -l` lists it. All sessions share one environment, built at the first.

Variables:
  RL_GAUNTLET_TORCH         the torch requirement (torch==2.13.0 when not said), or `installed`: use the interpreter
                            that runs nox, with the torch that it has, and build no environment
  RL_GAUNTLET_TORCH_SOURCE  where torch's wheel comes from: an index URL, or a folder of wheels
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import nox
from nox.command import CommandFailed

TORCH = os.environ.get("RL_GAUNTLET_TORCH", "torch==2.13.0")
TORCH_SOURCE = os.environ.get("RL_GAUNTLET_TORCH_SOURCE", "")
TORCH_IS_THERE = TORCH == "installed"
CORES = len(os.sched_getaffinity(0))

# Defects that every change is held to: quick ones, one at least for each case that they belong to.
GUARD_MUTANTS = ("rollout.*", "sockets.*", "loss.*", "logprob.*", "cell.trains:*", "cell.repeats-bit-equal:*")

nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = True


def shared(name: str) -> Callable[[Callable[[nox.Session], None]], object]:
    """A session in the environment that all share."""
    if TORCH_IS_THERE:
        return nox.session(name=name, venv_backend="none")
    return nox.session(name=name, venv_backend="virtualenv", venv_location=".nox/shared", reuse_venv=True)


def install(session: nox.Session) -> None:
    """torch first and by itself: the open range of the project must not choose another build."""
    python = [sys.executable] if TORCH_IS_THERE else ["python"]
    pip = [*python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not TORCH_IS_THERE:
        option = "--find-links" if Path(TORCH_SOURCE).is_dir() else "--extra-index-url"
        session.run(*pip, *([option, TORCH_SOURCE] if TORCH_SOURCE else []), TORCH)
    session.run(*pip, "-e", ".[dev]", external=TORCH_IS_THERE)


def run(session: nox.Session, *command: str) -> None:
    """Run a Python module with its arguments in the session's environment."""
    session.run(sys.executable if TORCH_IS_THERE else "python", "-m", *command, external=TORCH_IS_THERE)


def gauntlet(session: nox.Session, *arguments: str) -> None:
    run(session, "harness.cli.main", *arguments)


@shared("e2e-cpu")
def e2e_cpu(session: nox.Session) -> None:
    """The main job: run the smoke matrix on this CPU, keep it in the store, report it."""
    install(session)
    bundle = Path("bundles") / f"smoke-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    failed = False
    try:
        gauntlet(session, "run", "smoke", "--hardware", "cpu", "--bundle", str(bundle), *session.posargs)
    except CommandFailed:
        failed = True  # what was recorded is reported all the same
    if bundle.is_dir():
        gauntlet(session, "ingest", str(bundle))
        gauntlet(session, "report", "nightly", "--bundle", str(bundle))
    if failed:
        session.error("the smoke matrix did not pass; the lines above say why")


@shared("tests")
def tests(session: nox.Session) -> None:
    """Test our own code; what stands behind `--` goes to pytest."""
    install(session)
    run(session, "pytest", "-n", str(CORES), *session.posargs)


@shared("lint")
def lint(session: nox.Session) -> None:
    """Check format, lint rules and types."""
    install(session)
    run(session, "ruff", "format", "--check", ".")
    run(session, "ruff", "check", ".")
    run(session, "mypy")


@shared("mutants")
def mutants(session: nox.Session) -> None:
    """Hold the cases to the fixed set of defects that guards every change; `-- --mutant '*'` runs them all."""
    install(session)
    chosen = session.posargs or [word for glob in GUARD_MUTANTS for word in ("--mutant", glob)]
    gauntlet(session, "mutants", *chosen)


@shared("weekly-report")
def weekly_report(session: nox.Session) -> None:
    """Write the stability report of the last seven days from the store."""
    install(session)
    gauntlet(session, "report", "weekly", *session.posargs)


@shared("bench")
def bench(session: nox.Session) -> None:
    """Measure what the harness itself costs; the README quotes it."""
    install(session)
    run(session, "tests.benchmarks.harness_cost", *session.posargs)
