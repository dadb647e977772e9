"""The closed sets that every verdict is spoken in."""

from __future__ import annotations

from enum import StrEnum


class Evidence(StrEnum):
    """How a result was obtained. Never mixed, never promoted."""

    DEVICE = "device"  # ran on the hardware that the cell names
    EMULATED = "emulated"  # ran on the CPU behind an emulated device
    FORECAST = "forecast"  # traced at full size


class Outcome(StrEnum):
    """How one case in one cell ended."""

    PASSED = "passed"
    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    NOT_RUN = "not_run"


class FailureClass(StrEnum):
    """What kind of thing a result that is not a pass was."""

    CONTRACT = "contract"
    NUMERICS_NAN = "numerics.nan"
    NUMERICS_DRIFT = "numerics.drift"
    OOM_DEVICE = "oom.device"
    OOM_HOST = "oom.host"
    HANG_STALLED = "hang.stalled"
    HANG_SLOW = "hang.slow"
    CRASH_SIGNAL = "crash.signal"
    DEVICE_FAULT = "device.fault"
    DEVICE_DIRTY = "device.dirty"
    INFRA_WORKER_LOST = "infra.worker-lost"
    INFRA_START = "infra.start"

    @property
    def retried(self) -> bool:
        """Only faults of the surroundings earn a second try: once, in a fresh child."""
        return self.startswith("infra.") or self is FailureClass.DEVICE_FAULT


class Flag(StrEnum):
    """What else is to be known of a result."""

    SMOKE = "smoke"  # ran to its end and asserted nothing
    FLAKY = "flaky"  # passed on the one retry
    KNOWN = "known"  # a failure that is in the ledger
    UNEXPECTED_PASS = "unexpected_pass"  # in the ledger, and yet it passed


class PlanState(StrEnum):
    """What the plan has in mind for one case in one cell."""

    RUN = "run"
    SHARED = "shared"  # runs in another cell with the same projection
    NOT_APPLICABLE = "not_applicable"


class Verdict(StrEnum):
    """What all cases of one cell say together, worst first."""

    FAILED = "failed"
    INCOMPLETE = "incomplete"  # something passed, something never ran
    NOT_RUN = "not_run"
    SMOKE_ONLY = "smoke_only"  # everything ran to its end and nothing was asserted
    PASSED = "passed"  # every planned case passed, and at least one of them asserted something
