"""The child: builds one cell's subject once and answers case after case until it is told to stop.

It may be killed at any time. Whatever it prints goes to its own log, whose tail the runner attaches to a failure.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from harness.cases.base import Case, Context
from harness.cases.registry import all_cases
from harness.cases.runner import ran_out_of_memory, run_case
from harness.execution import messages
from harness.matrix.cell import Cell
from harness.subjects.protocol import Subject
from harness.subjects.registry import build_subject

_PROGRESS_SECONDS = 0.2  # a watchdog needs no more, and the pipe stays quiet


@dataclass(frozen=True, kw_only=True)
class ChildStart:
    """All a child needs to begin. Travels once, by the fork server."""

    cell: Cell
    log: Path
    threads: int
    process_bytes: int
    mutant: str | None = None
    hits: Path | None = None
    cases: Callable[[], Mapping[str, Case]] = all_cases  # importable by name, like `build`
    build: Callable[..., Subject] = build_subject


def child_main(connection: Connection, start: ChildStart) -> None:
    """Entry point of the child process."""
    os.setpgid(0, 0)  # its own group: the warden, and a time-out, end all of it
    _redirect_output(start.log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the runner asks a hung child where it is
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (start.process_bytes, start.process_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _set_threads(start.threads)
    try:
        messages.send(connection, messages.Ready(pid=os.getpid()))
        if not isinstance(messages.receive(connection), messages.Go):
            return
        _serve(connection, start)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the runner is gone, or has closed the session


def _serve(connection: Connection, start: ChildStart) -> None:
    subject: Subject | None = None
    try:
        while True:
            request = messages.receive(connection)
            assert isinstance(request, messages.RunCase)
            try:
                began = time.perf_counter()
                if subject is None:
                    subject = start.build(start.cell, mutant=start.mutant, hits_path=start.hits, threads=start.threads)
                messages.send(connection, messages.Built(seconds=time.perf_counter() - began))
                answer = _answer(connection, start, subject, request)
            except Exception as error:
                if ran_out_of_memory(error):
                    messages.send(
                        connection, messages.OutOfMemory(message=str(error) or "MemoryError", detail=_last_traceback())
                    )
                    return
                if subject is not None:
                    raise  # the runner of cases lets nothing else through: this is a bug of the harness, let it crash
                answer = messages.Answer(
                    passed=False,
                    failure_class="contract",
                    message=f"the subject could not be built: {type(error).__name__}: {error}",
                    detail=_last_traceback(),
                )
            messages.send(connection, answer)
    finally:
        if subject is not None:
            subject.close()


def _answer(connection: Connection, start: ChildStart, subject: Subject, request: messages.RunCase) -> messages.Answer:
    count, last = 0, 0.0

    def progress() -> None:
        nonlocal count, last
        count += 1
        if (now := time.monotonic()) - last > _PROGRESS_SECONDS:
            last = now
            messages.send(connection, messages.Progress(count=count))

    def on_step(seed: int, step: int, metrics: Mapping[str, float | None]) -> None:
        messages.send(connection, messages.Step(seed=seed, step=step, metrics=dict(metrics)))
        progress()

    context = Context(cell=start.cell, subject=subject, seed=request.seed, on_step=on_step, progress=progress)
    answer = run_case(
        start.cases()[request.case], context, seed=request.seed, examples=request.examples, data=request.data
    )
    return messages.Answer(**asdict(answer))


def _redirect_output(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  (lives as long as the process)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _set_threads(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for the processes that the cell starts itself
    import torch

    torch.set_num_threads(threads)


def _last_traceback() -> str:
    return traceback.format_exc()
