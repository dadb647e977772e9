"""Run one case against a built subject: draw inputs, judge each, shrink the first that fails.

A case with one input is judged directly. Everything else goes through Hypothesis, whose draws follow from the seed.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption

from harness.cases.base import Case, Context, Violation
from harness.cases.draws import drawing
from harness.results.vocabulary import FailureClass

_SHRINK_SECONDS = 10.0
_SHRINK_SHARE = 0.25  # of the case's time limit, if that is less
_NOT_FINITE = re.compile(r"\b(nan|inf|infinite|non-?finite|not finite)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CaseAnswer:
    """What a case said of its cell. Whoever watches the process tells of hangs, deaths and memory running out."""

    passed: bool
    failure_class: FailureClass | None = None
    by_assertion: bool = False  # the case's own assertion failed, not an error on the way
    message: str = ""
    detail: str = ""  # traceback
    examples: int = 0  # inputs judged, up to and with the first that failed
    discarded: int = 0  # inputs drawn that did not fit
    shrunk_input: dict[str, Any] | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Failure:
    error: Exception
    failure_class: FailureClass
    by_assertion: bool
    data: dict[str, Any] | None
    detail: str

    @property
    def message(self) -> str:
        return str(self.error) if self.by_assertion else f"{type(self.error).__name__}: {self.error}"

    @property
    def kind(self) -> tuple[bool, FailureClass]:
        return self.by_assertion, self.failure_class


class _OutOfMemory(BaseException):
    """Carries an error past Hypothesis, which would otherwise try to shrink it."""


def run_case(
    case: Case, context: Context, *, seed: int, examples: int, data: Mapping[str, Any] | None = None
) -> CaseAnswer:
    """Judge `examples` inputs drawn from `seed`, or exactly `data` when it is given.

    Raises what the subject raised when it ran out of memory, so that the process is known to be spoilt.
    """
    started = time.perf_counter()
    judge = _Judge(case, context)
    try:
        if data is not None:
            judge.replay(dict(data))
        elif case.examples == 1:
            judge.replay({})
        else:
            judge.explore(seed=seed, examples=examples)
    except _OutOfMemory as carried:
        raise carried.args[0] from None
    return judge.answer(seconds=time.perf_counter() - started)


class _Judge:
    """Counts what was judged and remembers what failed, so that an input fails again without being run again."""

    def __init__(self, case: Case, context: Context) -> None:
        self._case = case
        self._context = context
        self._judged = 0
        self._drawn = 0
        self._first: _Failure | None = None
        self._last: _Failure | None = None
        self._failed: dict[str, _Failure] = {}

    def replay(self, data: dict[str, Any]) -> None:
        """Judge one input."""
        self._drawn += 1
        try:
            self._judge(data)
        except UnsatisfiedAssumption:
            return
        except Exception as error:
            self._keep(error)

    def explore(self, *, seed: int, examples: int) -> None:
        """Judge inputs until `examples` passed or one failed, and shrink that one."""
        strategy = self._case.inputs(self._context.cell)

        @with_seed(seed)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=False,
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def judge_drawn(source: st.DataObject) -> None:
            self._drawn += self._first is None
            self._judge(source.draw(strategy))

        try:
            with drawing(shrink_seconds=min(_SHRINK_SECONDS, self._case.seconds * _SHRINK_SHARE)):
                judge_drawn()
        except Unsatisfiable:
            pass  # nothing fitted: the answer says so
        except Exception as error:
            self._keep(error)

    def _keep(self, error: Exception) -> None:
        if self._last is None or self._last.error is not error:
            self._last = _failure(error, case=self._case, data=None)  # not the check but the input broke

    def _judge(self, drawn: dict[str, Any]) -> None:
        text = json.dumps(drawn, allow_nan=False, sort_keys=True)
        known = self._failed.get(text)
        if known is not None:
            self._last = known
            raise known.error
        data = json.loads(text)  # what a replay from the command line would see
        self._context.progress()
        try:
            self._case.check(self._context, data)
        except UnsatisfiedAssumption:
            raise
        except Exception as error:
            if ran_out_of_memory(error):
                raise _OutOfMemory(error) from error
            self._fail(_failure(error, case=self._case, data=data), text)
        else:
            self._judged += self._first is None

    def _fail(self, failure: _Failure, text: str) -> None:
        if self._first is None:
            self._judged += 1
            self._first = failure
        elif failure.kind != self._first.kind:
            return  # another defect: shrinking stays with the one found first
        self._failed[text] = self._last = failure
        raise failure.error

    def answer(self, *, seconds: float) -> CaseAnswer:
        counts: dict[str, Any] = {
            "examples": self._judged,
            "discarded": self._drawn - self._judged,
            "seconds": seconds,
            "metrics": dict(self._context.metrics),
            "notes": dict(self._context.notes),
        }
        if self._last is not None:
            failure = self._last
            return CaseAnswer(
                passed=False,
                failure_class=failure.failure_class,
                by_assertion=failure.by_assertion,
                message=failure.message,
                detail=failure.detail,
                shrunk_input=failure.data,
                **counts,
            )
        if self._judged == 0:
            return CaseAnswer(
                passed=False,
                failure_class=FailureClass.CONTRACT,
                message=f"{self._case.id} judged no input: all {self._drawn} that were drawn did not fit",
                **counts,
            )
        return CaseAnswer(passed=True, **counts)


def _failure(error: Exception, *, case: Case, data: dict[str, Any] | None) -> _Failure:
    by_assertion = isinstance(error, Violation)
    if isinstance(error, Violation):
        failure_class = error.failure_class or case.failure_class
    elif isinstance(error, FloatingPointError) or _NOT_FINITE.search(str(error)):
        failure_class = FailureClass.NUMERICS_NAN
    else:
        failure_class = FailureClass.CONTRACT
    return _Failure(
        error=error,
        failure_class=failure_class,
        by_assertion=by_assertion,
        data=data,
        detail="".join(traceback.format_exception(error)),
    )


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether this is the host's memory running out, by type or by the wording of torch's CPU allocator."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
