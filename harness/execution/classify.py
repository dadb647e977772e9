"""What it means that a child did not answer: outcome and class from what could be seen from outside. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from harness.results.vocabulary import FailureClass, Outcome

_STATUS_UNKNOWN = 255  # what multiprocessing says when the fork server can no longer tell


@dataclass(frozen=True, kw_only=True)
class Silence:
    """What the runner saw of a child that gave no answer. Exactly one cause is set, or only `exit_code`."""

    exit_code: int | None = None  # as multiprocessing gives it: negative is a signal; None while alive
    timed_out_after: float | None = None  # seconds
    since_progress: float | None = None  # seconds between its last sign of progress and the time-out
    progress: int = 0
    group_bytes: int | None = None  # that passed the group's limit
    group_limit: int = 0
    last_bytes: int | None = None  # last polled size of the group
    system_oom_kills: int = 0  # by the kernel, machine-wide, while the case ran
    broken_message: str = ""  # it spoke, but not our language
    never_ready: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    outcome: Outcome
    failure_class: FailureClass
    message: str


def classify(silence: Silence) -> Verdict:
    """The first cause that explains the silence, most specific first."""
    if silence.group_bytes is not None:
        return Verdict(
            outcome=Outcome.OOM,
            failure_class=FailureClass.OOM_HOST,
            message=f"the cell's processes held {_mib(silence.group_bytes)} together, over the limit of "
            f"{_mib(silence.group_limit)}, and were ended",
        )
    if silence.never_ready:
        return Verdict(
            outcome=Outcome.CRASHED,
            failure_class=FailureClass.INFRA_START,
            message=f"the cell's process did not come up{_exit_words(silence.exit_code)}",
        )
    if silence.broken_message:
        return Verdict(
            outcome=Outcome.CRASHED,
            failure_class=FailureClass.INFRA_WORKER_LOST,
            message=f"the cell's process sent what is not a message: {silence.broken_message}",
        )
    if silence.timed_out_after is not None:
        return _timeout(silence)
    return _death(silence)


def _timeout(silence: Silence) -> Verdict:
    limit, since = silence.timed_out_after or 0.0, silence.since_progress
    # It moved in the last quarter of its time: slow. It did not: stalled. A first example that never ends is a stall.
    moving = silence.progress > 0 and since is not None and since < limit / 4
    last = f"last sign of progress {since:.1f} s before" if silence.progress and since is not None else "no sign of any"
    return Verdict(
        outcome=Outcome.TIMEOUT,
        failure_class=FailureClass.HANG_SLOW if moving else FailureClass.HANG_STALLED,
        message=f"no answer within {limit:g} s after {silence.progress} steps of progress ({last}); it was ended",
    )


def _death(silence: Silence) -> Verdict:
    code = silence.exit_code
    if code is None:
        return Verdict(
            outcome=Outcome.CRASHED,
            failure_class=FailureClass.INFRA_WORKER_LOST,
            message="the cell's process closed its pipe and lived on; it was ended",
        )
    if code == -signal.SIGKILL and _looks_like_oom(silence):
        return Verdict(
            outcome=Outcome.OOM,
            failure_class=FailureClass.OOM_HOST,
            message=f"the process was killed (SIGKILL) while the machine ran out of memory; its group last held "
            f"{_mib(silence.last_bytes or 0)}",
        )
    if code == _STATUS_UNKNOWN:
        return Verdict(
            outcome=Outcome.CRASHED,
            failure_class=FailureClass.INFRA_WORKER_LOST,
            message="the process is gone and its exit status unknown, as when the fork server dies (or by status 255)",
        )
    if code < 0:
        return Verdict(
            outcome=Outcome.CRASHED,
            failure_class=FailureClass.CRASH_SIGNAL,
            message=f"the process died{_exit_words(code)}",
        )
    return Verdict(
        outcome=Outcome.CRASHED,
        failure_class=FailureClass.CONTRACT,
        message=f"the process ended itself{_exit_words(code)} without an answer",
    )


def _looks_like_oom(silence: Silence) -> bool:
    near = silence.last_bytes is not None and silence.group_limit > 0 and silence.last_bytes > 0.9 * silence.group_limit
    return silence.system_oom_kills > 0 or near


def _exit_words(code: int | None) -> str:
    if code is None:
        return ""
    if code < 0:
        try:
            return f" by signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f" by signal {-code}"
    return f" with status {code}"


def _mib(count: int) -> str:
    return f"{count / 1024**2:.0f} MiB"


def system_oom_kills() -> int:
    """The kernel's count of processes it killed for memory, machine-wide; 0 where it does not tell."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
