"""`rl-gauntlet report nightly · weekly`, brought to the command by the entry-point group `rl_gauntlet.commands`.

pandas and matplotlib are imported when a report is written, not when the command starts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import NothingMeasuredError, RequestError
from harness.results import paths

app = typer.Typer(help="Write a report.", no_args_is_help=True, rich_markup_mode=None, add_completion=False)

StoreOption = Annotated[str, typer.Option(help="SQLite file or database URL that `rl-gauntlet ingest` wrote.")]


@app.command()
def nightly(
    store: StoreOption = str(paths.STORE),
    bundle: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Report this bundle instead of the last run in the store.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where to write; - for the terminal. [default: build/reports/]")
    ] = None,
) -> None:
    """One run in Markdown: the verdict first, then what failed and the command that shows it alone."""
    from harness.results.bundle import read_bundle
    from harness.results.store import Store
    from reports.nightly import render_nightly

    if bundle is not None:
        run = read_bundle(bundle)
    else:
        with Store(store) as opened:
            run_ids = opened.run_ids()
            if not run_ids:
                raise NothingMeasuredError(
                    f'the store "{opened.name}" holds no run to report (those with a mutant and reproductions do not '
                    "count); load some with `rl-gauntlet ingest`, or name one with --bundle"
                )
            run = opened.bundle(run_ids[-1])
    report = render_nightly(run)
    if out == "-":
        print(report)
    else:
        _write(Path(out) if out else paths.REPORTS / f"nightly-{Path(run.header.run_id).name}.md", report)


@app.command()
def weekly(
    store: StoreOption = str(paths.STORE),
    week: Annotated[
        str | None, typer.Option(metavar="YEAR-Wnn", help="An ISO week. [default: the seven days that end today, UTC]")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write both files.")] = paths.REPORTS,
) -> None:
    """Seven days in Markdown and as one HTML page: what moved, what is open, and how every cell did."""
    from harness.results.store import Store
    from reports.period import iso_week, last_seven_days
    from reports.weekly import gather
    from reports.weekly_pages import weekly_html, weekly_markdown

    period = iso_week(week) if week else last_seven_days(datetime.now(UTC).date())
    with Store(store) as opened:
        gathered = gather(opened, period)
    _write(out / f"weekly-{period.name}.md", weekly_markdown(gathered))
    _write(out / f"weekly-{period.name}.html", weekly_html(gathered))


def _write(path: Path, content: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f'cannot write the report "{path}": {error.strerror}; name another place with --out'
        ) from error
    print(f"report: {path}")
