"""A gathered week as Markdown and as one HTML page that needs nothing beside itself."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from harness.results.vocabulary import Verdict
from reports import plots
from reports.findings import MARK_WORDS
from reports.judged import headline
from reports.rendering import render_html, render_markdown
from reports.step_metrics import PLOTS
from reports.weekly import CellWeek, Week


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot of a cell's training; no plot when the metric was not measured."""

    title: str
    plot: Markup | None
    not_finite: int


def weekly_markdown(week: Week) -> str:
    return render_markdown("weekly.md.j2", **_values(week))


def weekly_html(week: Week) -> str:
    return render_html(
        "weekly.html.j2",
        **_values(week),
        panels={cell.state.key: _panels(cell) for cell in week.cells if cell.curves is not None},
        seed_colours=plots.SEED_COLOURS,
        peak_lines={cell.state.key: _peak_line(cell) for cell in week.cells if any(cell.peaks)},
    )


def _values(week: Week) -> dict[str, object]:
    return {
        "week": week,
        "headline": headline(week.summary),
        "Verdict": Verdict,
        "mark_words": MARK_WORDS,
        "case_names": week.case_names,
        "rows": week.grid,
        "not_run": week.not_run,
        "learning": [one for cell in week.cells for one in cell.learning],
        "curves": [cell.curves for cell in week.cells if cell.curves is not None],
        "never_measured": week.never_measured,
    }


def _panels(cell: CellWeek) -> list[Panel]:
    assert cell.curves is not None
    panels = []
    for name in PLOTS:
        curve = cell.curves.curve(name)
        label = f"{curve.title} of {' '.join(map(str, cell.state.key))} over its training steps"
        plot = plots.seed_lines(curve.table, label=label) if curve.measured else None
        panels.append(Panel(title=curve.title, plot=plot, not_finite=curve.not_finite))
    return panels


def _peak_line(cell: CellWeek) -> Markup:
    return plots.sparkline(cell.peaks, label=f"peak memory of {' '.join(map(str, cell.state.key))} by night")
