from __future__ import annotations

import math

import pytest

from reference_trainer.trainers.schedule import learning_rate_factor


def course(schedule: str, *, warmup: int, total: int) -> list[float]:
    return [
        learning_rate_factor(schedule, update=update, warmup=warmup, total=total)  # type: ignore[arg-type]
        for update in range(total + 1)
    ]


def test_the_constant_schedule_only_warms_up() -> None:
    assert course("constant", warmup=4, total=6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]


def test_the_linear_schedule_falls_to_zero_over_the_run() -> None:
    assert course("linear", warmup=0, total=4) == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert course("linear", warmup=2, total=4) == [0.5, 1.0, 1.0, 0.5, 0.0]


def test_the_cosine_schedule_falls_along_half_a_wave() -> None:
    expected = [0.5 * (1 + math.cos(math.pi * t / 4)) for t in range(5)]
    assert course("cosine", warmup=0, total=4) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_updates_beyond_the_run_stay_at_zero(schedule: str) -> None:
    assert learning_rate_factor(schedule, update=99, warmup=0, total=4) == 0.0  # type: ignore[arg-type]


def test_a_warm_up_as_long_as_the_run_never_falls() -> None:
    assert course("linear", warmup=3, total=3)[:3] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
