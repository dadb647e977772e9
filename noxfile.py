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
ENVIRONMENT = Path(".nox") / "shared"
GAUNTLET = ("-m", "harness.cli.main")
CORES = len(os.sched_getaffinity(0))

# Defects that every change is held to: quick ones, one at least for each case that they belong to. Those of the pure
# functions are in the tests as well (tests/harness/mutants/test_kills.py), all of them.
GUARD_MUTANTS = (
    "rollout.*",
    "sockets.*",
    "loss.split-invariant:*",
    "loss.update-matches-oracle:*",
    "loss.matches-oracle:kl-sign",
    "loss.matches-oracle:std-over-n",
    "logprob.*",
    "cell.trains:*",
    "cell.repeats-bit-equal:*",
)

nox.options.sessions = ["lint", "tests"]


def python_with_project(session: nox.Session) -> str:
    """The interpreter to run in, with the project in it.

    torch goes first and by itself: the open range of the project must not choose another build.
    """
    python = sys.executable if TORCH_IS_THERE else str(ENVIRONMENT / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if not TORCH_IS_THERE:
        if not (ENVIRONMENT / "bin" / "pip").exists():  # absent, or its making was interrupted
            session.run(sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT))
        option = "--find-links" if Path(TORCH_SOURCE).is_dir() else "--extra-index-url"
        session.run(*pip, *([option, TORCH_SOURCE] if TORCH_SOURCE else []), TORCH)
    session.run(*pip, "-e", ".[dev]")
    return python


def python_beside_trl(session: nox.Session) -> str:
    """The interpreter of an environment that has TRL too, which is compared with and never needed."""
    python = str(ENVIRONMENT.parent / "trl" / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if not Path(python).exists():
        session.run(sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT.parent / "trl"))
    option = "--find-links" if Path(TORCH_SOURCE).is_dir() else "--extra-index-url"
    session.run(*pip, *([option, TORCH_SOURCE] if TORCH_SOURCE else []), "torch==2.13.0" if TORCH_IS_THERE else TORCH)
    session.run(*pip, "-e", ".[dev]", "trl==1.16.*", "transformers<5.20")
    return python


def shared_session(name: str) -> Callable[[Callable[[nox.Session], None]], object]:
    """A session without an environment of its own: nox makes one for each, and torch is large."""
    return nox.session(name=name, venv_backend="none")


@shared_session("e2e-cpu")
def e2e_cpu(session: nox.Session) -> None:
    """The main job: run the smoke matrix on this CPU, keep it in the store, report it."""
    python = python_with_project(session)
    bundle = Path("bundles") / f"smoke-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    failed = False
    try:
        session.run(python, *GAUNTLET, "run", "smoke", "--hardware", "cpu", "--bundle", str(bundle), *session.posargs)
    except CommandFailed:
        failed = True  # what was recorded is reported all the same
    if bundle.is_dir():
        session.run(python, *GAUNTLET, "ingest", str(bundle))
        session.run(python, *GAUNTLET, "report", "nightly", "--bundle", str(bundle))
    if failed:
        session.error("the smoke matrix did not pass; the lines above say why")


@shared_session("tests")
def tests(session: nox.Session) -> None:
    """Test our own code; what stands behind `--` goes to pytest."""
    python = python_with_project(session)
    session.run(python, "-m", "pytest", "-n", str(CORES), *session.posargs)


@shared_session("lint")
def lint(session: nox.Session) -> None:
    """Check format, lint rules and types."""
    python = python_with_project(session)
    session.run(python, "-m", "ruff", "format", "--check", ".")
    session.run(python, "-m", "ruff", "check", ".")
    session.run(python, "-m", "mypy")


@shared_session("mutants")
def mutants(session: nox.Session) -> None:
    """Hold the cases to the fixed set of defects that guards every change; `-- --mutant '*'` runs them all."""
    python = python_with_project(session)
    chosen = session.posargs or [word for glob in GUARD_MUTANTS for word in ("--mutant", glob)]
    session.run(python, *GAUNTLET, "mutants", *chosen)


@shared_session("weekly-report")
def weekly_report(session: nox.Session) -> None:
    """Write the stability report of the last seven days from the store."""
    python = python_with_project(session)
    session.run(python, *GAUNTLET, "report", "weekly", *session.posargs)


@shared_session("bench")
def bench(session: nox.Session) -> None:
    """Measure what the README and docs quote; `-- drafts log_prob grpo_step harness_cost` names single ones."""
    chosen = session.posargs or ["drafts", "log_prob", "grpo_step", "harness_cost"]
    python = python_with_project(session)
    for name in chosen:
        beside_trl = name in ("log_prob", "grpo_step")
        session.run(python_beside_trl(session) if beside_trl else python, "-m", f"tests.benchmarks.{name}")


@shared_session("curves")
def curves(session: nox.Session) -> None:
    """Train the tiny Qwen3 with every algorithm and draw the curves of docs/algorithms; takes a quarter of an hour."""
    python = python_with_project(session)
    session.run(python, "-m", "tests.benchmarks.learning_curves", *session.posargs)
