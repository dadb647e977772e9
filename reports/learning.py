"""What the cells that must learn did: the test that was decided on beforehand, its seeds, and each seed's gain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.results.records import CaseRecord
from reports import text
from reports.analysis import SeedGain, gain_by_seed

_NOT_FACTS = ("seeds", "fingerprints")  # shown apart; for machines


@dataclass(frozen=True, kw_only=True)
class Learning:
    """One judged record that tests whether a cell learns."""

    record: CaseRecord
    seeds: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]  # the record's own account of its test, name and value
    gains: tuple[SeedGain, ...]  # of the reward while it trained


def learning(records: Iterable[CaseRecord], frame_of: Callable[[str], pd.DataFrame]) -> list[Learning]:
    """Every record that tells, under `learning` in its notes, the seeds it was judged by.

    `frame_of` gives a run's `step_frame` by its id.
    """
    return [
        Learning(
            record=record,
            seeds=tuple(_shown(seed) for seed in told["seeds"]),
            facts=tuple((name, _shown(value)) for name, value in _flat(told) if name not in _NOT_FACTS),
            gains=tuple(gain_by_seed(frame_of(record.run_id), record.cell, record.case, metric="reward")),
        )
        for record in records
        if isinstance(told := record.notes.get("learning"), Mapping) and isinstance(told.get("seeds"), list)
    ]


def _flat(notes: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested names joined by a dot.

    >>> _flat({"test": {"name": "t", "p": 0.01}})
    [('test.name', 't'), ('test.p', 0.01)]
    """
    flat: list[tuple[str, Any]] = []
    for name, value in notes.items():
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return flat


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value)
    return text.number(value) if isinstance(value, float) else str(value)
