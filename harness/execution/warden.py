"""The warden: a process of its own that ends what a runner started when the runner vanishes, even by `kill -9`.

It blocks on a pipe that only the runner holds. While the runner lives it is told which process groups exist; when the
pipe closes, whatever the reason, every group still on its list is killed, with all that descends from the fork server.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.execution import processes

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class WardenLostError(UserError):
    """Without a warden a killed runner would leave processes behind, so the run stops."""

    exit_code = ExitCode.FAILED


class Warden:
    """The runner's end of the pipe."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.execution.warden"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C and a hang-up of the terminal are for the runner, not for its warden
            env={**os.environ, "PYTHONPATH": path},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch_group(self, group: int) -> None:
        self._tell(f"+{group}")

    def forget_group(self, group: int) -> None:
        self._tell(f"-{group}")

    def watch_root(self, pid: int) -> None:
        """Kill this process too, with its descendants: the fork server, whose children have no other parent."""
        self._tell(f"r{pid}")

    def close(self) -> None:
        """End the watch; the warden kills what is left and exits."""
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):  # a lost warden has been told of already
            stdin.close()
        self._process.wait(timeout=30)

    def _tell(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            with self._lock:
                stdin.write(line.encode() + b"\n")
                stdin.flush()
        except BrokenPipeError:
            raise WardenLostError(
                f"the warden (process {self.pid}) is gone, so nothing would end the cells if this run were killed; "
                "the run was stopped, what it recorded is kept; run it again"
            ) from None


def main() -> None:
    groups: set[int] = set()
    roots: set[int] = set()
    for line in sys.stdin:
        verb, number = line[0], int(line[1:])
        if verb == "+":
            groups.add(number)
        elif verb == "-":
            groups.discard(number)
        else:
            roots.add(number)
    processes.kill_all(groups=groups, roots=roots)


if __name__ == "__main__":
    main()
