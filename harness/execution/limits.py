"""How much of the machine one cell may take: threads, time and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one child and of its process group.

    `process_bytes` is held by the kernel (RLIMIT_DATA, private memory of each process); `group_bytes` is polled over
    the whole group, shared pages counted once. `time_scale` stretches every case's time-out on slow machines.
    """

    threads: int = 1
    process_bytes: int = 4 * GIB
    group_bytes: int = 6 * GIB
    time_scale: float = 1.0
    start_seconds: float = 120.0  # until a child is ready; the first one pays the heavy imports
    poll_seconds: float = 1.0  # of memory: reading it takes the kernel some 10 ms a process


def usable_cores() -> int:
    """Cores this process may run on, which a container may have narrowed."""
    return len(os.sched_getaffinity(0))


def threads_per_worker(workers: int) -> int:
    """Cores are shared out whole; a worker never gets less than one thread."""
    return max(1, usable_cores() // max(1, workers))
