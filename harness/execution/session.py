"""One cell seen from the runner: asks its child case after case, and starts a new child when one is lost.

A child that crashes, hangs, is killed or runs out of memory costs the case it was on and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from harness.execution import messages
from harness.execution.child import ChildStart
from harness.execution.classify import Silence, Verdict, classify, system_oom_kills
from harness.execution.nursery import Child, ChildNeverReady, Nursery
from harness.execution.recording import Asked, Ending, Frame, Watch, case_record, new_watch, step_record
from harness.results.records import CaseRecord, StepRecord
from harness.results.vocabulary import FailureClass, Flag, Outcome

_TAIL_BYTES = 8_000  # of a child's log, attached to a failure
_DUMP_SECONDS = 0.5  # for a hung child to write where its threads are
_FIRST_POLL_SECONDS = 0.05  # of memory: most cases are short, and would otherwise never be looked at


class Interrupted(Exception):
    """The run is being stopped; what this case was doing is of no account."""


class CellSession:
    """Runs cases of one cell in turn. Not thread-safe: one thread, one session."""

    def __init__(self, nursery: Nursery, frame: Frame, *, on_step: Callable[[StepRecord], None]) -> None:
        self._nursery, self._frame, self._on_step = nursery, frame, on_step
        self._child: Child | None = None
        self._born = 0
        self._log = Path(os.devnull)

    def run(self, asked: Asked) -> list[CaseRecord]:
        """Run one case; a fault of the surroundings is retried once in a fresh child. One record an attempt.

        Raises Interrupted when the nursery is being stopped meanwhile.
        """
        first = self._attempt(asked, attempt=1)
        if first.failure_class is None or not first.failure_class.retried:
            return [first]
        self._drop_child()
        second = self._attempt(asked, attempt=2)
        if second.outcome is Outcome.PASSED:
            second = second.model_copy(update={"flags": (*second.flags, Flag.FLAKY)})
        return [first, second]

    def close(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _attempt(self, asked: Asked, *, attempt: int) -> CaseRecord:
        hits = self._hits_path()
        watch = new_watch(self._frame.limits)
        ending = self._ending(asked, watch, hits)
        if self._nursery.stopping.is_set() and ending.answer is None:
            raise Interrupted
        return case_record(self._frame, asked, watch, ending, attempt=attempt, hits=hits)

    def _ending(self, asked: Asked, watch: Watch, hits: Path | None) -> Ending:
        oom_kills = system_oom_kills()
        try:
            child = self._ready_child(watch, hits)
        except ChildNeverReady as error:
            silence = Silence(never_ready=True, exit_code=error.exit_code)
            return Ending(verdict=classify(silence), detail=_tail(self._log, 0))
        log_start = self._log.stat().st_size
        heard = self._ask(child, asked, watch)
        if isinstance(heard, messages.Answer):
            return Ending(answer=heard)
        if isinstance(heard, messages.OutOfMemory):
            self._drop_child()
            message = f"out of memory: {heard.message}"
            verdict = Verdict(outcome=Outcome.OOM, failure_class=FailureClass.OOM_HOST, message=message)
            return Ending(verdict=verdict, detail=heard.detail)
        silence = replace(heard, system_oom_kills=system_oom_kills() - oom_kills)
        return Ending(verdict=classify(silence), detail=_tail(self._log, log_start))

    def _ask(self, child: Child, asked: Asked, watch: Watch) -> messages.Answer | messages.OutOfMemory | Silence:
        """Put the case to the child and wait; notice progress, memory, time-outs and death on the way."""
        limits = self._frame.limits
        try:
            messages.send(
                child.connection,
                messages.RunCase(case=asked.case.id, seed=asked.seed, examples=asked.examples, data=asked.data),
            )
        except (BrokenPipeError, ConnectionResetError):
            return self._lost(watch)
        next_poll = time.perf_counter() + _FIRST_POLL_SECONDS
        while True:
            deadline = watch.clock + watch.limit
            patience = max(0.0, min(next_poll, deadline) - time.perf_counter())
            ready = wait([child.connection, child.process.sentinel], timeout=patience)
            now = time.perf_counter()
            if child.connection in ready:
                try:
                    message = messages.receive(child.connection)
                except (EOFError, OSError):
                    return self._lost(watch)
                except ValueError as error:
                    return self._lost(watch, broken_message=str(error))
                match message:
                    case messages.Built():
                        watch.build_seconds = message.seconds
                        watch.clock = watch.last_progress = now
                        watch.limit = asked.case.seconds * limits.time_scale
                    case messages.Progress():
                        watch.progress, watch.last_progress = message.count, now
                    case messages.Step():
                        watch.last_progress = now
                        self._on_step(step_record(self._frame, asked, message))
                    case messages.Answer() | messages.OutOfMemory():
                        return message
            elif ready:  # the process ended and left nothing unread
                return self._lost(watch)
            elif now >= deadline:
                _dump_threads(child)
                return self._lost(watch, timed_out_after=watch.limit, since_progress=now - watch.last_progress)
            if now >= next_poll:
                next_poll = now + limits.poll_seconds
                held = child.group_bytes()
                watch.peak_bytes = max(held, watch.peak_bytes or 0)
                if held > limits.group_bytes:
                    return self._lost(watch, group_bytes=held)

    def _lost(self, watch: Watch, **cause: Any) -> Silence:
        """The child is no more, or is to be no more: end its group and say what was seen."""
        assert self._child is not None
        process = self._child.process
        if not cause:
            process.join(timeout=1.0)  # a process that is about to be gone still has its exit code to give
        code = process.exitcode
        self._child.kill()
        self._child = None
        return Silence(
            exit_code=code,
            progress=watch.progress,
            last_bytes=watch.peak_bytes,
            group_limit=self._frame.limits.group_bytes,
            **cause,
        )

    def _ready_child(self, watch: Watch, hits: Path | None) -> Child:
        """The child at hand, or a new one: one that died between two cases has cost nothing."""
        if self._nursery.stopping.is_set():
            raise Interrupted
        if self._child is not None and self._child.process.is_alive():
            return self._child
        self._drop_child()
        self._born += 1
        self._log = self._frame.logs / f"{self._frame.cell.id.replace('/', '_')}.{os.getpid()}.{self._born}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.touch()
        start = ChildStart(
            cell=self._frame.cell,
            log=self._log,
            threads=self._frame.limits.threads,
            process_bytes=self._frame.limits.process_bytes,
            mutant=self._frame.mutant,
            hits=hits,
            cases=self._frame.cases,
            build=self._frame.build,
        )
        self._child = self._nursery.start(start, seconds=self._frame.limits.start_seconds)
        watch.clock = time.perf_counter()
        watch.start_seconds = watch.clock - watch.began
        return self._child

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _hits_path(self) -> Path | None:
        if self._frame.mutant is None:
            return None
        name = "".join(c if c.isalnum() else "-" for c in self._frame.mutant)
        return self._frame.logs / f"hits-{name}-{os.getpid()}-{id(self):x}"


def _dump_threads(child: Child) -> None:
    """Ask a hung child to write its threads' stacks to its log."""
    try:
        os.kill(child.group, signal.SIGUSR1)
    except ProcessLookupError:
        return
    child.process.join(timeout=_DUMP_SECONDS)


def _tail(log: Path, start: int) -> str:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
