"""Seconds of a step and of its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from reference_trainer.platforms.base import Platform


class PhaseClock:
    """Starts with the step. A device works behind the caller's back, so the clock waits for it before it is read."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; phases of one name add up."""
        started = time.perf_counter()
        yield
        self._platform.synchronize()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def __getitem__(self, name: str) -> float:
        """Seconds of one phase."""
        return self._seconds[name]

    @property
    def total(self) -> float:
        """Seconds since the step began."""
        return time.perf_counter() - self._started
