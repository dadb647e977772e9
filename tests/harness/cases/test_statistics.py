from __future__ import annotations

import math

import pytest

from harness.cases import statistics
from harness.cases.statistics import t_quantile, t_tail


@pytest.mark.parametrize(
    ("degrees", "tail", "quantile"),
    # Printed tables of Student's t.
    [(1, 0.05, 6.314), (2, 0.05, 2.920), (3, 0.025, 3.182), (4, 0.05, 2.132), (5, 0.01, 3.365), (10, 0.001, 4.144)],
)
def test_quantiles_are_those_of_the_printed_tables(degrees: int, tail: float, quantile: float) -> None:
    assert t_quantile(tail, degrees=degrees) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize("degrees", range(1, 9))
def test_the_tail_is_the_integral_of_the_density(degrees: int) -> None:
    def density(x: float) -> float:
        scale = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
        return scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2)

    steps = 4000
    for t in (0.3, 1.7, 4.0):
        middle = sum(density((index + 0.5) * t / steps) for index in range(steps)) * t / steps
        assert t_tail(t, degrees=degrees) == pytest.approx(0.5 - middle, abs=1e-7)
        assert t_tail(-t, degrees=degrees) == pytest.approx(0.5 + middle, abs=1e-7)


def test_clear_gains_are_shown_and_noise_is_not() -> None:
    clear = statistics.gain_test([0.30, 0.25, 0.35, 0.28, 0.31], min_gain=0.0, alpha=0.01)
    assert clear.shown
    assert 0.2 < clear.lower_bound < clear.mean_gain
    noise = statistics.gain_test([0.05, -0.04, 0.02, -0.03, 0.01], min_gain=0.0, alpha=0.01)
    assert not noise.shown
    assert noise.lower_bound < 0


def test_the_bound_and_the_p_value_agree() -> None:
    gains = [0.1, 0.2, 0.15, 0.02]
    at_the_bound = statistics.gain_test(gains, min_gain=0.0, alpha=0.05).lower_bound
    assert statistics.gain_test(gains, min_gain=at_the_bound - 1e-9, alpha=0.05).shown
    assert not statistics.gain_test(gains, min_gain=at_the_bound + 1e-9, alpha=0.05).shown


def test_gains_without_spread_need_enough_seeds() -> None:
    assert not statistics.gain_test([0.1] * 4, min_gain=0.0, alpha=0.05).shown
    assert statistics.gain_test([0.1] * 5, min_gain=0.0, alpha=0.05).shown
    assert not statistics.gain_test([0.0] * 9, min_gain=0.0, alpha=0.05).shown


def test_two_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        statistics.gain_test([0.1, 0.2], min_gain=0.0, alpha=0.05)
