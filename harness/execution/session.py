"""One cell seen from the runner: asks its child case after case, and starts a new child when one is lost.

A child that crashes, hangs, is killed or runs out of memory costs the case it was on and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from harness.cases.base import Case
from harness.cases.registry import all_cases
from harness.execution import messages
from harness.execution.child import ChildStart
from harness.execution.classify import Silence, Verdict, classify, system_oom_kills
from harness.execution.limits import Limits
from harness.execution.nursery import Child, ChildNeverReady, Nursery
from harness.matrix.cell import Cell
from harness.results.records import CaseRecord, StepRecord
from harness.results.vocabulary import Evidence, FailureClass, Flag, Outcome
from harness.subjects.protocol import Subject
from harness.subjects.registry import build_subject

_TAIL_BYTES = 8_000  # of a child's log, attached to a failure
_DUMP_SECONDS = 0.5  # for a hung child to write where its threads are


class Interrupted(Exception):
    """The run is being stopped; what this case was doing is of no account."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One case to run. `data` replays a single input instead of drawing `examples`."""

    case: Case
    seed: int
    examples: int
    data: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What is the same for every record of a session."""

    run_id: str
    cell: Cell
    evidence: Evidence
    logs: Path
    limits: Limits
    mutant: str | None = None
    reproduce: Callable[[Asked, dict[str, Any] | None], str] = lambda asked, shrunk: ""
    cases: Callable[[], Mapping[str, Case]] = all_cases  # where the child finds them, and its subject
    build: Callable[..., Subject] = build_subject


@dataclass
class _Watch:
    """What the runner notices while it waits for one answer."""

    started: float
    clock: float  # when the running time limit began
    limit: float
    last_progress: float
    progress: int = 0
    peak_bytes: int | None = None
    build_seconds: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)


class CellSession:
    """Runs cases of one cell in turn. Not thread-safe: one thread, one session."""

    def __init__(self, nursery: Nursery, frame: Frame, *, on_step: Callable[[StepRecord], None]) -> None:
        self._nursery, self._frame, self._on_step = nursery, frame, on_step
        self._child: Child | None = None
        self._born = 0

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
        began, began_utc = time.perf_counter(), datetime.now(UTC).isoformat(timespec="milliseconds")
        hits = self._hits_path(asked)
        oom_kills = system_oom_kills()
        watch = _Watch(started=began, clock=began, limit=self._frame.limits.start_seconds, last_progress=began)
        answer: messages.Answer | None = None
        verdict: Verdict | None = None
        detail = ""
        try:
            child = self._ready_child(hits)
            log_start = self._log.stat().st_size
            messages.send(child.connection, self._request(asked))
            outcome = self._wait(child, watch, asked)
            if isinstance(outcome, messages.Answer):
                answer = outcome
            elif isinstance(outcome, messages.OutOfMemory):
                self._drop_child()
                verdict = Verdict(
                    outcome=Outcome.OOM,
                    failure_class=FailureClass.OOM_HOST,
                    message=f"out of memory: {outcome.message}",
                )
                detail = outcome.detail
            else:
                verdict = classify(replace(outcome, system_oom_kills=system_oom_kills() - oom_kills))
                detail = _tail(self._log, log_start)
        except ChildNeverReady as error:
            verdict = classify(Silence(never_ready=True, exit_code=error.exit_code))
            detail = _tail(self._log, 0)
        if self._nursery.stopping.is_set() and answer is None:
            raise Interrupted
        for step in watch.steps:
            self._on_step(step)
        seconds = answer.seconds if answer else time.perf_counter() - began - watch.build_seconds
        shrunk = dict(answer.shrunk_input) if answer and answer.shrunk_input is not None else asked.data
        passed = answer is not None and answer.passed
        common = {
            "run_id": self._frame.run_id,
            "cell": self._frame.cell.id,
            "subject": self._frame.cell.subject,
            "case": asked.case.id,
            "size": self._frame.cell.size,
            "dtype": self._frame.cell.dtype,
            "evidence": self._frame.evidence,
            "seed": asked.seed,
            "seconds": round(seconds, 6),
            "attempt": attempt,
            "mutant": self._frame.mutant,
            "mutant_hits": _size(hits) if hits else None,
            "peak_bytes": watch.peak_bytes,
            "started": began_utc,
            "shrunk_input": None if passed else shrunk,
            "reproduce": "" if passed else self._frame.reproduce(asked, shrunk),
        }
        if answer is None:
            assert verdict is not None
            return CaseRecord(
                **common,
                outcome=verdict.outcome,
                failure_class=verdict.failure_class,
                message=verdict.message,
                detail=detail,
                examples=watch.progress,
            )
        overhead = time.perf_counter() - began - watch.build_seconds - answer.seconds
        return CaseRecord(
            **common,
            outcome=Outcome.PASSED if passed else Outcome.FAILED,
            failure_class=None if passed else FailureClass(answer.failure_class or FailureClass.CONTRACT),
            by_assertion=answer.by_assertion,
            flags=(),
            message=answer.message,
            detail=answer.detail,
            examples=answer.examples,
            discarded=answer.discarded,
            overhead_seconds=round(max(0.0, overhead), 6),
            metrics={**answer.metrics, "build_seconds": watch.build_seconds or None},
            notes=dict(answer.notes),
        )

    def _wait(self, child: Child, watch: _Watch, asked: Asked) -> messages.Answer | messages.OutOfMemory | Silence:
        """Wait for the answer; notice progress, memory, time-outs and death on the way."""
        limits = self._frame.limits
        next_poll = watch.started + 0.05
        while True:
            now = time.perf_counter()
            deadline = watch.clock + watch.limit
            ready = wait([child.connection, child.process.sentinel], timeout=max(0.0, min(next_poll, deadline) - now))
            now = time.perf_counter()
            if child.connection in ready:
                try:
                    message = messages.receive(child.connection)
                except (EOFError, ConnectionResetError, OSError):
                    return self._lost(watch, limits)
                except ValueError as error:
                    return self._lost(watch, limits, broken_message=str(error))
                match message:
                    case messages.Built():
                        watch.build_seconds = message.seconds
                        watch.clock = watch.last_progress = now
                        watch.limit = asked.case.seconds * limits.time_scale
                    case messages.Progress():
                        watch.progress, watch.last_progress = message.count, now
                    case messages.Step():
                        watch.steps.append(self._step_record(asked, message))
                        watch.last_progress = now
                    case messages.Answer() | messages.OutOfMemory():
                        return message
                continue
            if ready:  # the process ended and left nothing unread
                return self._lost(watch, limits)
            if now >= deadline:
                _dump_threads(child)
                since = now - watch.last_progress
                return self._lost(watch, limits, timed_out_after=watch.limit, since_progress=since)
            if now >= next_poll:
                next_poll = now + limits.poll_seconds
                held = child.group_bytes()
                watch.peak_bytes = max(held, watch.peak_bytes or 0)
                if held > limits.group_bytes:
                    return self._lost(watch, limits, group_bytes=held)

    def _lost(self, watch: _Watch, limits: Limits, **cause: Any) -> Silence:
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
            group_limit=limits.group_bytes,
            **cause,
        )

    def _ready_child(self, hits: Path | None) -> Child:
        if self._nursery.stopping.is_set():
            raise Interrupted
        if self._child is None:
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
        return self._child

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _request(self, asked: Asked) -> messages.RunCase:
        return messages.RunCase(case=asked.case.id, seed=asked.seed, examples=asked.examples, data=asked.data)

    def _hits_path(self, asked: Asked) -> Path | None:
        if self._frame.mutant is None:
            return None
        name = "".join(c if c.isalnum() else "-" for c in self._frame.mutant)
        return self._frame.logs / f"hits-{name}-{os.getpid()}-{id(self):x}"

    def _step_record(self, asked: Asked, step: messages.Step) -> StepRecord:
        cell = self._frame.cell
        return StepRecord(
            run_id=self._frame.run_id,
            cell=cell.id,
            case=asked.case.id,
            size=cell.size,
            dtype=cell.dtype,
            evidence=self._frame.evidence,
            seed=step.seed,
            step=step.step,
            metrics=dict(step.metrics),
        )


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


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
