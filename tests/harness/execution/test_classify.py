"""What silence means, from what was seen from outside."""

from __future__ import annotations

import signal

import pytest

from harness.execution.classify import Silence, classify
from harness.results.vocabulary import FailureClass, Outcome


@pytest.mark.parametrize(
    ("silence", "outcome", "failure_class"),
    [
        (Silence(exit_code=-signal.SIGSEGV), Outcome.CRASHED, FailureClass.CRASH_SIGNAL),
        (Silence(exit_code=-signal.SIGKILL), Outcome.CRASHED, FailureClass.CRASH_SIGNAL),
        (Silence(exit_code=-signal.SIGKILL, system_oom_kills=1), Outcome.OOM, FailureClass.OOM_HOST),
        (Silence(exit_code=-signal.SIGKILL, last_bytes=95, group_limit=100), Outcome.OOM, FailureClass.OOM_HOST),
        (
            Silence(exit_code=-signal.SIGKILL, last_bytes=50, group_limit=100),
            Outcome.CRASHED,
            FailureClass.CRASH_SIGNAL,
        ),
        (Silence(exit_code=-signal.SIGSEGV, system_oom_kills=1), Outcome.CRASHED, FailureClass.CRASH_SIGNAL),
        (Silence(exit_code=0), Outcome.CRASHED, FailureClass.CONTRACT),
        (Silence(exit_code=255), Outcome.CRASHED, FailureClass.INFRA_WORKER_LOST),
        (Silence(exit_code=None), Outcome.CRASHED, FailureClass.INFRA_WORKER_LOST),
        (Silence(never_ready=True, exit_code=-9), Outcome.CRASHED, FailureClass.INFRA_START),
        (Silence(broken_message="x"), Outcome.CRASHED, FailureClass.INFRA_WORKER_LOST),
        (Silence(group_bytes=2, group_limit=1, exit_code=-9), Outcome.OOM, FailureClass.OOM_HOST),
        (Silence(timed_out_after=60, since_progress=60, progress=0), Outcome.TIMEOUT, FailureClass.HANG_STALLED),
        (Silence(timed_out_after=60, since_progress=59, progress=1), Outcome.TIMEOUT, FailureClass.HANG_STALLED),
        (Silence(timed_out_after=60, since_progress=2, progress=9), Outcome.TIMEOUT, FailureClass.HANG_SLOW),
    ],
)
def test_each_silence_has_one_name(silence: Silence, outcome: Outcome, failure_class: FailureClass) -> None:
    verdict = classify(silence)
    assert (verdict.outcome, verdict.failure_class) == (outcome, failure_class)
    assert verdict.message


def test_only_faults_of_the_surroundings_are_retried() -> None:
    retried = {failure_class for failure_class in FailureClass if failure_class.retried}
    assert retried == {FailureClass.INFRA_START, FailureClass.INFRA_WORKER_LOST, FailureClass.DEVICE_FAULT}
