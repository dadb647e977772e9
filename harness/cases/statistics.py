"""One-sided test that a mean gain over seeds is above a bound: Student's t, and an exact sign test without spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, kw_only=True)
class GainTest:
    """H0: the mean gain is at most `min_gain`. Rejected, and learning shown, when `p_value` < `alpha`."""

    test: str
    min_gain: float
    mean_gain: float
    statistic: float | None  # None when the gains have no spread
    p_value: float
    alpha: float
    lower_bound: float  # of the mean gain, at confidence 1 - alpha; without spread the smallest gain

    @property
    def shown(self) -> bool:
        return self.p_value < self.alpha


def gain_test(gains: Sequence[float], *, min_gain: float, alpha: float) -> GainTest:
    """Test the gains of independent seeds. Raises ValueError with fewer than three: no spread can be told.

    Gains that are all equal have a variance of 0, for which t says nothing; then each gain above the bound is one toss
    of a coin, and p = 2^-n.
    """
    if len(gains) < 3:
        raise ValueError(f"{len(gains)} gains are too few for a test over seeds; give at least 3")
    mean, spread, count = fmean(gains), stdev(gains), len(gains)
    if spread == 0:
        p_value = 0.5**count if mean > min_gain else 1.0
        return GainTest(
            test="exact sign test, one-sided",
            min_gain=min_gain,
            mean_gain=mean,
            statistic=None,
            p_value=p_value,
            alpha=alpha,
            lower_bound=mean,
        )
    error = spread / math.sqrt(count)
    statistic = (mean - min_gain) / error
    return GainTest(
        test=f"one-sample t test, one-sided, {count - 1} degrees of freedom",
        min_gain=min_gain,
        mean_gain=mean,
        statistic=statistic,
        p_value=t_tail(statistic, degrees=count - 1),
        alpha=alpha,
        lower_bound=mean - t_quantile(alpha, degrees=count - 1) * error,
    )


def t_tail(t: float, *, degrees: int) -> float:
    """P(T >= t) of Student's t with integer degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: a finite series in θ = atan(t / √ν).
    """
    angle = math.atan2(abs(t), math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2 == 1
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(2 if odd else 1, degrees, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    inside = math.sin(angle) * total
    if odd:
        inside = (angle + inside) * 2 / math.pi
    return (1 - inside) / 2 if t >= 0 else (1 + inside) / 2


def t_quantile(tail: float, *, degrees: int) -> float:
    """The t with P(T >= t) = `tail`, for a tail below ½, by bisection."""
    low, high = 0.0, 1.0
    while t_tail(high, degrees=degrees) > tail:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, degrees=degrees) > tail else (low, middle)
    return high
