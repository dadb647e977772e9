"""From what was asked, watched and answered to the records of it. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.cases.base import Case
from harness.cases.registry import all_cases
from harness.execution import messages
from harness.execution.classify import Verdict
from harness.execution.limits import Limits
from harness.matrix.cell import Cell
from harness.results.records import CaseRecord, StepRecord
from harness.results.vocabulary import Evidence, FailureClass, Outcome
from harness.subjects.protocol import Subject
from harness.subjects.registry import build_subject


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
class Watch:
    """What the runner notices while it waits for one answer. Times are of `time.perf_counter`, in seconds."""

    began: float
    began_utc: str
    limit: float  # the time limit that runs now, and when it began to
    clock: float
    last_progress: float
    progress: int = 0
    peak_bytes: int | None = None
    start_seconds: float = 0.0  # until the child was ready, where one was started
    build_seconds: float = 0.0  # of the subject, where it was built


def new_watch(limits: Limits) -> Watch:
    now = time.perf_counter()
    return Watch(
        began=now,
        began_utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
        limit=limits.start_seconds,
        clock=now,
        last_progress=now,
    )


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ended: with an answer, or with the verdict on why there was none."""

    answer: messages.Answer | None = None
    verdict: Verdict | None = None
    detail: str = ""


def case_record(
    frame: Frame, asked: Asked, watch: Watch, ending: Ending, *, attempt: int, hits: Path | None
) -> CaseRecord:
    """The record of one attempt."""
    elapsed = time.perf_counter() - watch.began - watch.start_seconds - watch.build_seconds
    answer = ending.answer
    if answer is not None:
        outcome = Outcome.PASSED if answer.passed else Outcome.FAILED
        failure_class = None if answer.passed else FailureClass(answer.failure_class or FailureClass.CONTRACT)
        message, detail, seconds = answer.message, answer.detail, answer.seconds
    else:
        assert ending.verdict is not None
        outcome, failure_class, message = ending.verdict.outcome, ending.verdict.failure_class, ending.verdict.message
        answer, detail, seconds = messages.Answer(passed=False, examples=watch.progress), ending.detail, elapsed
    passed = outcome is Outcome.PASSED
    shrunk = dict(answer.shrunk_input) if answer.shrunk_input is not None else asked.data
    cell = frame.cell
    return CaseRecord(
        run_id=frame.run_id,
        cell=cell.id,
        subject=cell.subject,
        case=asked.case.id,
        size=cell.size,
        dtype=cell.dtype,
        evidence=frame.evidence,
        outcome=outcome,
        failure_class=failure_class,
        by_assertion=answer.by_assertion,
        message=message,
        detail=detail,
        seed=asked.seed,
        examples=answer.examples,
        discarded=answer.discarded,
        seconds=round(seconds, 6),
        overhead_seconds=round(max(0.0, elapsed - seconds), 6),
        attempt=attempt,
        shrunk_input=None if passed else shrunk,
        reproduce="" if passed else frame.reproduce(asked, shrunk),
        mutant=frame.mutant,
        mutant_hits=None if hits is None else _size(hits),
        peak_bytes=watch.peak_bytes,
        started=watch.began_utc,
        metrics={
            **answer.metrics,
            "start_seconds": round(watch.start_seconds, 6) or None,
            "build_seconds": round(watch.build_seconds, 6) or None,
        },
        notes=dict(answer.notes),
    )


def step_record(frame: Frame, asked: Asked, step: messages.Step) -> StepRecord:
    """The record of one training step that a case took."""
    return StepRecord(
        run_id=frame.run_id,
        cell=frame.cell.id,
        case=asked.case.id,
        size=frame.cell.size,
        dtype=frame.cell.dtype,
        evidence=frame.evidence,
        seed=step.seed,
        step=step.step,
        metrics=dict(step.metrics),
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
