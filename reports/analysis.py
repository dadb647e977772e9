"""Numbers of reports: step curves, what each seed gained, memory and time. Frames in, plain records out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pandas as pd

from harness.results.bundle import Bundle
from harness.results.records import CaseRecord, StepRecord
from reports.judged import CellKey, JudgedRun
from reports.step_metrics import LIVE_BYTES, PHASE_SUFFIX, STEP_SECONDS, TABLE, TITLES

_COLUMNS = ["cell", "case", "seed", "step", "metric", "value", "measured"]
_QUARTER = 0.25


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric of one cell: a column a seed, a row a step. Empty when no step measured it."""

    metric: str
    title: str
    table: pd.DataFrame
    not_finite: int  # values that were measured and are no number

    @property
    def measured(self) -> bool:
        return not self.table.empty

    @property
    def mean_line(self) -> list[float]:
        """Mean over seeds, a value a step."""
        return [float(value) for value in self.table.mean(axis=1)]

    def mean(self, *, end: bool) -> float | None:
        """Mean over seeds and the first, or last, quarter of the steps."""
        if not self.measured:
            return None
        steps = max(1, round(len(self.table) * _QUARTER))
        part = self.table.tail(steps) if end else self.table.head(steps)
        values = part.to_numpy(dtype="float64")
        values = values[~np.isnan(values)]  # a seed that was cut short has no value here
        return float(values.mean()) if values.size else math.nan


@dataclass(frozen=True, kw_only=True)
class CellCurves:
    """What one cell's training shows. `case` is the one with the most steps."""

    cell: str
    case: str
    seeds: tuple[int, ...]
    steps: int
    curves: tuple[Curve, ...]

    def curve(self, metric: str) -> Curve:
        return next(curve for curve in self.curves if curve.metric == metric)


@dataclass(frozen=True, kw_only=True)
class CellCost:
    """Memory and time of one cell; None was not measured."""

    cell: str
    peak_bytes: int | None
    live_bytes: float | None  # most that the training process held at the end of a step
    case_seconds: float | None  # all cases together
    step_seconds: float | None  # median over seeds and steps
    phase_seconds: dict[str, float] = field(default_factory=dict)  # medians by phase
    overhead_mean: float | None = None  # of the harness, seconds a case
    overhead_max: float | None = None


def step_frame(bundle: Bundle | None) -> pd.DataFrame:
    """Every metric of every step in long form: cell, case, seed, step, metric, value, measured. None has none."""
    rows = [
        (record.cell, record.case, record.seed, record.step, metric, value, value is not None)
        for record in (bundle.records if bundle else ())
        if isinstance(record, StepRecord)
        for metric, value in record.metrics.items()
    ]
    return pd.DataFrame(rows, columns=_COLUMNS).astype({"value": "float64", "measured": "bool"})


def case_records(bundle: Bundle, cell: str | None = None) -> list[CaseRecord]:
    """Case records of a run, or of one cell of it."""
    records = [record for record in bundle.records if isinstance(record, CaseRecord)]
    return records if cell is None else [record for record in records if record.cell == cell]


def cell_curves(frame: pd.DataFrame, cell: str) -> CellCurves | None:
    """Curves of the metrics in `TABLE`, or None when the cell recorded no step."""
    of_cell = frame[frame["cell"] == cell]
    if of_cell.empty:
        return None
    case = (
        of_cell.groupby("case", sort=True)[["seed", "step"]].apply(lambda steps: len(steps.drop_duplicates())).idxmax()
    )
    steps = of_cell[of_cell["case"] == case]
    return CellCurves(
        cell=cell,
        case=str(case),
        seeds=tuple(int(seed) for seed in sorted(steps["seed"].unique())),
        steps=int(steps["step"].nunique()),
        curves=tuple(_curve(steps, metric) for metric in TABLE),
    )


def _curve(steps: pd.DataFrame, metric: str) -> Curve:
    measured = steps[(steps["metric"] == metric) & steps["measured"]]
    table = measured.pivot_table(index="step", columns="seed", values="value", aggfunc="last", dropna=False)
    finite = measured["value"].abs() < float("inf")
    return Curve(metric=metric, title=TITLES[metric], table=table, not_finite=int((~finite).sum()))


def never_measured(frames: Iterable[pd.DataFrame]) -> list[str]:
    """Titles of expected metrics that no step measured."""
    measured = {metric for frame in frames for metric in frame.loc[frame["measured"], "metric"].unique()}
    return [title for metric, title in TITLES.items() if metric not in measured]


def cell_cost(records: Sequence[CaseRecord], frame: pd.DataFrame, cell: str) -> CellCost:
    """What one cell took: `records` are those that it ran itself, `frame` the `step_frame` of a run that trained it."""
    peaks = [record.peak_bytes for record in records if record.peak_bytes is not None]
    overheads = pd.Series([record.overhead_seconds for record in records], dtype="float64")
    measured = frame[(frame["cell"] == cell) & frame["measured"]]
    live = measured.loc[measured["metric"] == LIVE_BYTES, "value"]
    timed = measured[measured["metric"].str.endswith(PHASE_SUFFIX)]
    medians = {str(name): float(value) for name, value in timed.groupby("metric")["value"].median().items()}
    return CellCost(
        cell=cell,
        peak_bytes=max(peaks, default=None),
        live_bytes=float(live.max()) if not live.empty else None,
        case_seconds=sum(record.seconds for record in records) if records else None,
        step_seconds=medians.pop(STEP_SECONDS, None),
        phase_seconds={name.removesuffix(PHASE_SUFFIX): value for name, value in medians.items()},
        overhead_mean=float(overheads.mean()) if records else None,
        overhead_max=float(overheads.max()) if records else None,
    )


def peak_history(runs: Iterable[JudgedRun], key: CellKey, machine_class: str, days: Sequence[date]) -> list[int | None]:
    """Largest peak of each day on machines of one class; another class is another series."""
    peaks: dict[date, int] = {}
    for run in runs:
        if run.bundle.header.machine.machine_class != machine_class:
            continue
        for record in run.bundle.records:
            if (
                isinstance(record, CaseRecord)
                and CellKey(record.cell, record.size, record.dtype, record.evidence) == key
            ):
                day = run.started.date()
                peaks[day] = max(peaks.get(day, 0), record.peak_bytes or 0)
    return [peaks.get(day) or None for day in days]


@dataclass(frozen=True, kw_only=True)
class SeedGain:
    """One metric of one seed: its line, and the mean over the first and over the last quarter of it."""

    seed: int
    line: list[float]
    first: float
    last: float


def gain_by_seed(frame: pd.DataFrame, cell: str, case: str, *, metric: str) -> list[SeedGain]:
    """What each seed that a case trained gained."""
    steps = frame[(frame["cell"] == cell) & (frame["case"] == case)]
    curve = _curve(steps, metric).table
    lines = {int(seed): curve[seed].dropna().to_numpy(dtype="float64") for seed in curve.columns}
    return [_gain(seed, line) for seed, line in lines.items() if line.size]


def _gain(seed: int, line: np.ndarray) -> SeedGain:
    quarter = max(1, round(len(line) * _QUARTER))
    first, last = float(line[:quarter].mean()), float(line[-quarter:].mean())
    return SeedGain(seed=seed, line=line.tolist(), first=first, last=last)
