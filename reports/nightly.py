"""The nightly report: one run, the verdict first, in Markdown."""

from __future__ import annotations

from harness.results.bundle import Bundle
from harness.results.vocabulary import Verdict
from reports.analysis import case_records, cell_cost, cell_curves, never_measured, step_frame
from reports.findings import MARK_WORDS, Failure, failures, flaky_passes, grid, not_run
from reports.judged import headline, judge
from reports.learning import learning
from reports.rendering import render_markdown

_LONGEST = 600_000  # characters of commands and messages: a step summary above 1 MiB is dropped whole


def render_nightly(bundle: Bundle) -> str:
    """Write the report of one run."""
    run = judge(bundle)
    cells = run.summary.cells
    frame = step_frame(bundle)
    found = failures(cells, run.summary.unplanned)
    names, rows = grid(cells)
    return render_markdown(
        "nightly.md.j2",
        header=bundle.header,
        started=run.started,
        end=bundle.end,
        damaged=bundle.damaged,
        summary=run.summary,
        headline=headline(run.summary),
        failures=found,
        shown_whole=_how_many_fit(found),
        flaky=flaky_passes(cells),
        not_run=not_run(cells),
        case_names=names,
        rows=rows,
        mark_words=MARK_WORDS,
        Verdict=Verdict,
        learning=learning(case_records(bundle), lambda run_id: frame),
        curves=[curves for cell in cells if (curves := cell_curves(frame, cell.cell)) is not None],
        costs=[cell_cost(case_records(bundle, cell.cell), frame, cell.cell) for cell in cells],
        never_measured=never_measured([frame]),
    )


def _how_many_fit(found: list[Failure]) -> int:
    length = 0
    for count, failure in enumerate(found):
        length += len(failure.record.reproduce) + len(failure.record.message) + 200
        if length > _LONGEST:
            return count
    return len(found)
