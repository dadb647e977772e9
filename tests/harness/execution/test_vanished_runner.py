"""When the runner vanishes nothing of it stays, however it went: no child, no grandchild, no fork server, no warden."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.execution import processes

ROOT = Path(__file__).resolve().parents[3]


def start_doomed_runner(folder: Path) -> subprocess.Popen[str]:
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.execution.doomed_runner", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert runner.stdout is not None
    assert runner.stdout.readline().strip() == "hanging"
    return runner


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_outlives_a_runner_that_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    runner = start_doomed_runner(tmp_path)
    family = processes.members(roots=[runner.pid]) - {runner.pid}
    assert len(family) >= 5, "warden, fork server, its resource tracker, child, and the process the child started"
    runner.send_signal(how)
    runner.wait(timeout=10)
    assert alive_after(family, seconds=10) == set()


def test_ctrl_c_ends_the_children_at_once(tmp_path: Path) -> None:
    runner = start_doomed_runner(tmp_path)
    family = processes.members(roots=[runner.pid]) - {runner.pid}
    os.killpg(runner.pid, signal.SIGINT)  # what a terminal does
    runner.wait(timeout=10)
    assert alive_after(family, seconds=10) == set()


def alive_after(pids: set[int], *, seconds: float) -> set[int]:
    """Those of `pids` that still live when all are gone or `seconds` are over."""
    deadline = time.monotonic() + seconds
    while (living := {pid for pid in pids if processes.members(roots=[pid])}) and time.monotonic() < deadline:
        time.sleep(0.05)
    return living
