"""The course of the learning rate, in optimizer updates."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_factor(schedule: Schedule, *, update: int, warmup: int, total: int) -> float:
    """Share of the peak rate for update number `update` (from 0) of `total`: a rise over `warmup`, then the course.

    The first update of a warm-up already moves (1 / warmup); linear and cosine would reach 0 at update `total`.
    """
    if update < warmup:
        return (update + 1) / warmup
    progress = min((update - warmup) / max(total - warmup, 1), 1.0)
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
