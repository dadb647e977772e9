"""A real run killed at random moments: nothing of it lives on, and what it left is loaded and reported."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.execution import processes
from harness.results.bundle import read_bundle

ROOT = Path(__file__).resolve().parents[3]
CELL = "cpu/qwen3/grpo/sync/native/dp2"  # with rollout processes of its own


def gauntlet(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness.cli.main", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("moment", range(4))
def test_a_killed_run_leaves_no_process_and_a_readable_bundle(tmp_path: Path, moment: int) -> None:
    bundle, store = tmp_path / "bundle", tmp_path / "store.sqlite"
    command = gauntlet("run", "smoke", "--cell", CELL, "--case", "cell.*", "--bundle", str(bundle))
    runner = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (bundle / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(random.Random(moment).uniform(0, 3) * (moment + 1))  # from before the first child to amid the training
    family = processes.members(roots=[runner.pid])
    runner.send_signal(signal.SIGKILL)
    runner.wait(timeout=10)
    deadline = time.monotonic() + 20
    while (living := {pid for pid in family if processes.members(roots=[pid])}) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living == set()

    assert not read_bundle(bundle).complete
    for arguments in (
        ("ingest", str(bundle), "--store", str(store)),
        ("report", "nightly", "--store", str(store), "--out", str(tmp_path / "report.md")),
    ):
        done = subprocess.run(
            gauntlet(*arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr
    report = (tmp_path / "report.md").read_text()
    assert "cut short" in report
    assert "0 of 1" in report
