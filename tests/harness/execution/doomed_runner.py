"""A runner with one cell that hangs, to be killed: `python -m tests.harness.execution.doomed_runner FOLDER`.

Prints a line once the case is on its way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from harness.execution import processes
from harness.execution.limits import GIB, Limits
from harness.execution.nursery import Nursery
from harness.execution.recording import Asked, Frame
from harness.execution.session import CellSession
from harness.results.vocabulary import Evidence
from tests.harness.execution import misbehaving


def main() -> None:
    # Whoever started the tests may have had these ignored, as nohup and a shell's background do, and that is inherited.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Nursery() as nursery:
        frame = Frame(
            run_id="r",
            cell=misbehaving.CELL,
            evidence=Evidence.DEVICE,
            logs=Path(sys.argv[1]),
            limits=Limits(process_bytes=8 * GIB, time_scale=1000),
            cases=misbehaving.cases,
            build=misbehaving.build,
        )
        session = CellSession(nursery, frame, on_step=lambda step: None)
        threading.Thread(target=_announce, daemon=True).start()
        session.run(Asked(case=misbehaving.cases()["bad.hangs"], seed=1, examples=1))


def _announce() -> None:
    """Say it when the hanging case has started its own process, which leaves the group by setsid."""
    while not any(_command(pid).endswith("time.sleep(600)") for pid in processes.members(roots=[os.getpid()])):
        time.sleep(0.02)
    print("hanging", flush=True)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
