"""Starts children from a fork server that has paid the heavy imports, and makes sure that none outlives the runner."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import tempfile
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from harness.errors import RequestError
from harness.execution import messages, processes
from harness.execution.child import ChildStart, child_main
from harness.execution.warden import Warden

# Threads that wait by spinning starve the other workers of a small machine; nothing may be fetched while it runs.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class ChildNeverReady(Exception):
    """The child did not come up in time. `exit_code` as multiprocessing gives it, None when it was still alive."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Child:
    """One live child process with its pipe. It leads a process group of its own."""

    def __init__(self, process: BaseProcess, connection: Connection, nursery: Nursery) -> None:
        self.process, self.connection, self._nursery = process, connection, nursery

    @property
    def group(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def group_bytes(self) -> int:
        """Resident bytes of the whole group, pages shared among its members counted once."""
        return sum(processes.proportional_bytes(pid) for pid in processes.members(groups=[self.group]))

    def kill(self) -> int | None:
        """End the whole group now; return the child's exit code."""
        processes.kill_all(groups=[self.group], roots=[self.group])
        self.process.join(timeout=5)
        self.connection.close()
        self._nursery.forget(self)
        return self.process.exitcode

    def stop(self, *, seconds: float = 5.0) -> None:
        """Let the child end by itself (its pipe closes), then make sure."""
        self.connection.close()
        self.process.join(timeout=seconds)
        self.kill()


class Nursery:
    """One per runner: a warden, a fork server, and the children that live."""

    def __init__(self, *, threads: int = 1) -> None:
        os.environ.update(_ENVIRONMENT)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self._warden = Warden()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["harness.execution.preload"])
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self.stopping = threading.Event()

    @property
    def warden_pid(self) -> int:
        return self._warden.pid

    def start(self, start: ChildStart, *, seconds: float) -> Child:
        """Start a child and wait until it runs in its own group under the warden's eye.

        Raises ChildNeverReady when it does not come up within `seconds`.
        """
        self._watch_fork_server()
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=child_main, args=(theirs, start))
        try:
            process.start()
        except (EOFError, OSError) as error:  # the fork server died, while it was importing or since
            raise ChildNeverReady(None) from error
        finally:
            theirs.close()
        child = Child(process, ours, self)
        with self._lock:
            self._children.add(child)
        assert process.pid is not None
        self._warden.watch_group(process.pid)
        if self.stopping.is_set():  # set between the caller's look and our start
            child.kill()
            raise ChildNeverReady(None)
        try:
            if not wait([ours, process.sentinel], timeout=seconds) or not ours.poll():
                raise EOFError
            messages.receive(ours)
            messages.send(ours, messages.Go())
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            code = process.exitcode
            child.kill()
            raise ChildNeverReady(code) from error
        return child

    def _watch_fork_server(self) -> None:
        """Start the fork server where there is none, and name it to the warden before it begins its long imports."""
        try:
            multiprocessing.forkserver.ensure_running()
        except OSError as error:  # a socket's path is bounded, and this one lies under TMPDIR
            raise RequestError(
                f"the fork server cannot be started under {tempfile.gettempdir()}: {error}; set TMPDIR to a short path"
            ) from error
        self._warden.watch_root(multiprocessing.forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]

    def forget(self, child: Child) -> None:
        with self._lock:
            if child not in self._children:
                return
            self._children.discard(child)
        self._warden.forget_group(child.group)

    def kill_children(self) -> None:
        """End every child at once, for Ctrl-C; nothing new should be started afterwards."""
        self.stopping.set()
        with self._lock:
            children = tuple(self._children)
        processes.kill_all(groups=[child.group for child in children], roots=[child.group for child in children])

    def close(self) -> None:
        self.kill_children()
        self._warden.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
