"""The run's own guards may die: the warden, the fork server. Each is told as what it is, and blamed on no subject."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import time
from pathlib import Path

import pytest

from harness.execution.limits import GIB, Limits
from harness.execution.nursery import Nursery
from harness.execution.recording import Asked, Frame
from harness.execution.session import CellSession
from harness.execution.warden import WardenLostError
from harness.results.vocabulary import Evidence, FailureClass, Flag, Outcome
from tests.harness.execution import misbehaving


def session_in(nursery: Nursery, logs: Path) -> CellSession:
    frame = Frame(
        run_id="r",
        cell=misbehaving.CELL,
        evidence=Evidence.DEVICE,
        logs=logs,
        limits=Limits(process_bytes=8 * GIB),
        cases=misbehaving.cases,
        build=misbehaving.build,
    )
    return CellSession(nursery, frame, on_step=lambda step: None)


def asked(case: str) -> Asked:
    return Asked(case=misbehaving.cases()[case], seed=1, examples=1)


def test_a_run_without_its_warden_stops_and_says_so(tmp_path: Path) -> None:
    with Nursery() as nursery:
        os.kill(nursery.warden_pid, signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(WardenLostError, match=f"process {nursery.warden_pid}"):
            session_in(nursery, tmp_path).run(asked("ok.passes"))


def test_a_lost_fork_server_is_a_fault_of_the_surroundings_and_retried(tmp_path: Path) -> None:
    with Nursery() as nursery:
        session = session_in(nursery, tmp_path)
        session.run(asked("ok.passes"))
        assert session._child is not None
        server, child = multiprocessing.forkserver._forkserver._forkserver_pid, session._child.group  # type: ignore[attr-defined]
        os.kill(server, signal.SIGKILL)
        os.kill(child, signal.SIGSTOP)  # alive, and lost with its server: nobody can tell how it ends
        time.sleep(0.2)
        records = session.run(asked("ok.passes"))
        session.close()
    assert records[-1].outcome is Outcome.PASSED
    assert all(record.failure_class in (None, FailureClass.INFRA_WORKER_LOST) for record in records)
    assert len(records) == 1 or records[-1].flags == (Flag.FLAKY,)
