from __future__ import annotations

import math
import re

import pandas as pd
import pytest

from reports import plots


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [1.0, 1.0, 1.0],
        [math.nan, math.nan],
        [1.0, math.inf, 2.0],
        [0.0, 1e300],
        [-1e-300, 1e-300],
        [math.nan, 2.0],
    ],
)
def test_any_curve_can_be_drawn(values):
    assert plots.seed_lines(pd.DataFrame({1: values}), label="reward").startswith("<svg ")


def test_equal_data_gives_equal_bytes_and_two_plots_share_no_id():
    table = pd.DataFrame({1: [1.0, 2.0], 2: [2.0, 1.0]})
    first, again, other = (plots.seed_lines(table, label=label) for label in ("a", "a", "b"))
    assert first == again
    assert not set(re.findall(r'id="([^"]*)"', first)) & set(re.findall(r'id="([^"]*)"', other))


def test_ink_follows_the_page():
    drawn = plots.seed_lines(pd.DataFrame({1: [1.0, 2.0], 2: [2.0, 1.0]}), label="a")
    assert "currentColor" in drawn
    assert "#010203" not in drawn
    assert "<style" not in drawn


def test_a_label_cannot_leave_its_attribute():
    drawn = plots.sparkline([1.0, None, 2.0], label='"><script>alert(1)</script>\x00')
    assert "<script" not in drawn
    assert "\x00" not in drawn


def test_nights_without_a_value_are_gaps():
    gaps = plots.sparkline([1.0, None, 3.0], label="a")
    whole = plots.sparkline([1.0, 2.0, 3.0], label="a")
    assert gaps.count("<use ") == 2
    assert whole.count("<use ") == 3
