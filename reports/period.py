"""Which week a weekly report speaks of: seven UTC days."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from harness.errors import RequestError

_DAYS = 7


@dataclass(frozen=True, kw_only=True)
class Period:
    """Seven days from midnight UTC; `name` is fit for a file name."""

    first: date
    name: str

    @property
    def since(self) -> datetime:
        return datetime.combine(self.first, time(), tzinfo=UTC)

    @property
    def until(self) -> datetime:
        """Exclusive."""
        return self.since + timedelta(days=_DAYS)

    @property
    def last(self) -> date:
        return self.first + timedelta(days=_DAYS - 1)

    @property
    def days(self) -> tuple[date, ...]:
        return tuple(self.first + timedelta(days=day) for day in range(_DAYS))

    @property
    def previous(self) -> Period:
        first = self.first - timedelta(days=_DAYS)
        return Period(first=first, name=_name(first))


def last_seven_days(today: date) -> Period:
    """The seven days that end with `today`."""
    first = today - timedelta(days=_DAYS - 1)
    return Period(first=first, name=_name(first))


def iso_week(text: str) -> Period:
    """Read `2026-W49`. Raises `RequestError` for anything else."""
    found = re.fullmatch(r"(\d{4})-W(\d{1,2})", text)
    try:
        if found is None:
            raise ValueError
        first = date.fromisocalendar(int(found[1]), int(found[2]), 1)
    except ValueError:
        raise RequestError(f'"{text}" is not a week; write the ISO year and week, such as 2026-W49') from None
    return Period(first=first, name=_name(first))


def _name(first: date) -> str:
    """The ISO week when the days are one, Monday to Sunday, else the last day."""
    if first.isoweekday() == 1:
        year, week, _ = first.isocalendar()
        return f"{year}-W{week:02}"
    return f"to-{first + timedelta(days=_DAYS - 1)}"
