from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from harness.errors import RequestError
from reports.period import iso_week, last_seven_days


def test_an_iso_week_runs_from_monday_to_sunday():
    week = iso_week("2026-W49")
    assert (week.first, week.last) == (date(2026, 11, 30), date(2026, 12, 6))
    assert week.until == datetime(2026, 12, 7, tzinfo=UTC)
    assert week.previous.name == "2026-W48"


def test_the_first_week_of_a_year_may_begin_in_the_year_before():
    assert iso_week("2026-W1").first == date(2025, 12, 29)
    assert iso_week("2026-W01").name == "2026-W01"


def test_the_last_seven_days_end_today():
    week = last_seven_days(date(2026, 12, 1))
    assert week.days[0] == date(2026, 11, 25)
    assert week.days[-1] == date(2026, 12, 1)
    assert week.name == "to-2026-12-01"


@pytest.mark.parametrize("text", ["2026-49", "2026-W54", "2025-W53", "last", "2026-W00", "0000-W01", "2026-W49 "])
def test_what_is_no_week_is_refused(text):
    with pytest.raises(RequestError, match="is not a week; write the ISO year and week"):
        iso_week(text)
