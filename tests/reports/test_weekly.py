from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from harness.errors import NothingMeasuredError
from harness.results.store import Store
from harness.results.vocabulary import FailureClass, Flag, Outcome
from reports.period import iso_week
from reports.weekly import gather
from reports.weekly_pages import weekly_html, weekly_markdown
from tests.reports import builders
from tests.reports.builders import CELLS, MONDAY, case, header, planned_cell, steps

HOSTILE = (
    "<script>alert(1)</script> \"onload=x' `|$\\frac{$ \x00\x1b[31m\u202e ]]> &amp; {{7*7}} https://evil.example/x.js"
)
VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, ids unique."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text += data


@pytest.fixture
def store(tmp_path):
    with Store(str(tmp_path / "store.sqlite"), create=True) as opened:
        yield opened


def load(store, *bundles):
    for bundle in bundles:
        store.ingest(bundle)


def read(store, week="2026-W49"):
    gathered = gather(store, iso_week(week))
    content = weekly_html(gathered)
    return weekly_markdown(gathered), content, Page(content)


def flat(text):
    return re.sub(r"\s+", " ", text)


def test_a_week_of_seven_cells_ten_cases_and_seven_nights(tmp_path, store):
    load(store, *builders.week(tmp_path / "weeks"))
    load(store, builders.night(tmp_path / "before", started=MONDAY - timedelta(days=2), cells=CELLS[:-1]))
    markdown, content, page = read(store)
    assert markdown.startswith(
        "# FAILED · week 2026-W49 · 2026-11-30 to 2026-12-06\n\n**6 of 7 cells passed** by the last run of each case"
    )
    assert "69 of 70 planned cases passed; 7 runs counted." in markdown
    for told in (markdown, flat(page.text)):
        assert "since 2026-12-03 (4 nights)" in told
        assert f"--cell {CELLS[2]} --case logprob.layout-invariant --case-seed 7" in told
        assert "broke" in told
        assert "gained" in told
        assert "hang.slow" in told
        assert "passed on attempt 2" in told
    assert [tag for tag, _ in page.elements].count("svg") == 7 * 4 + 7
    squares = [
        attributes["title"]
        for tag, attributes in page.elements
        if "square" in str(attributes.get("class")) and "title" in attributes
    ]
    assert len(squares) == 7 * 7 + 7 * 10
    assert squares.count("2026-12-03: failed, 9 of 10 cases passed") == 1
    assert len(content) < 1_000_000


def test_the_page_needs_nothing_beside_itself(tmp_path, store):
    load(store, *builders.week(tmp_path / "weeks", nights=2))
    _, content, page = read(store)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", content)
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "base", "form"}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = {str(attributes["href"])[1:] for _, attributes in page.elements if "href" in attributes}
    assert used <= set(ids)


def test_hostile_text_stays_text(tmp_path, store):
    cell = f"cpu/{HOSTILE}"
    run = header(
        [planned_cell(cell, ["x.y", HOSTILE]), planned_cell(CELLS[0], ["x.y"], evidence=None, reason=HOSTILE)],
        suite=HOSTILE,
        commit=HOSTILE,
        versions={HOSTILE: HOSTILE},
    )
    records = [
        case(run, cell, "x.y", Outcome.FAILED, message=HOSTILE, reproduce=HOSTILE, flags=(Flag.KNOWN,)),
        case(run, cell, HOSTILE, notes={"learning": {"seeds": [HOSTILE], HOSTILE: {"a": HOSTILE}}}),
        *steps(run, cell, HOSTILE, count=3),
    ]
    load(store, builders.bundle(tmp_path / "b", run, records))
    markdown, content, page = read(store)
    assert "script" not in {tag for tag, _ in page.elements}
    assert "<script" not in content
    assert page.text.count("<script>alert(1)</script>") >= 10
    for told in (markdown, content):
        assert not re.search("[\x00\x1b\u202e]", told)
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)


def test_the_latest_curves_of_a_cell_show_each_seed_and_say_what_was_not_measured(tmp_path, store):
    def without_kl(step):
        return step.model_copy(
            update={"metrics": {name: value for name, value in step.metrics.items() if name != "kl"}}
        )

    run = header([planned_cell(CELLS[0], ["train.learns"]), planned_cell(CELLS[1], ["x.y"])])
    records = [
        case(run, CELLS[0], "train.learns"),
        *map(without_kl, steps(run, CELLS[0])),
        case(run, CELLS[1], "x.y", peak_bytes=None),
    ]
    load(store, builders.bundle(tmp_path / "b", run, records))
    markdown, content, page = read(store)
    assert content.count('class="unmeasured"') == 1
    assert [f"seed {seed}" in page.text for seed in (1, 2, 3)] == [True] * 3
    labels = [str(attributes["aria-label"]) for tag, attributes in page.elements if tag == "svg"]
    assert sum(label.startswith("reward of") for label in labels) == 1
    assert not any(label.startswith("KL") for label in labels)
    assert "Not measured by any step: KL to the reference policy" in markdown
    assert re.search(rf"\| `{re.escape(CELLS[1])}` \| not measured \| not measured \|", markdown)


def test_a_quiet_week_is_one_line(tmp_path, store):
    for number, day in enumerate((-7, 0, 1)):
        load(
            store,
            builders.night(
                tmp_path / f"{number}", started=MONDAY + timedelta(days=day), cells=CELLS[:2], cases=("x.y",)
            ),
        )
    markdown, _, page = read(store)
    assert "A quiet week: 2 runs, 2 cells, nothing moved." in markdown
    assert "A quiet week: 2 runs, 2 cells, nothing moved." in page.text
    assert "None: no case fails" in markdown


def test_a_first_week_has_nothing_to_compare_with(tmp_path, store):
    load(store, builders.night(tmp_path / "b", cells=CELLS[:1], cases=("x.y",)))
    markdown, _, _ = read(store)
    assert "nothing to compare with" in markdown
    assert "gained" not in markdown


def test_a_week_without_a_run_names_the_last_one_there_is(tmp_path, store):
    with pytest.raises(NothingMeasuredError, match="holds no run that counts"):
        read(store)
    load(store, builders.night(tmp_path / "b", cells=CELLS[:1], cases=("x.y",)))
    with pytest.raises(
        NothingMeasuredError, match=r'between 2026-12-07 and 2026-12-13: its last run is "20261130T020000Z"'
    ):
        read(store, "2026-W50")


def test_runs_of_mutants_are_not_part_of_a_week(tmp_path, store):
    load(
        store,
        builders.night(tmp_path / "m", cells=CELLS[:1], cases=("x.y",), mutant="loss.split-invariant:mean-of-means"),
    )
    with pytest.raises(NothingMeasuredError):
        read(store)


def test_a_failure_stays_open_after_a_reproduction_and_after_a_run_that_did_not_reach_it(tmp_path, store):
    cell, plan = CELLS[0], [planned_cell(CELLS[0], ("x.y",))]
    failed = header(plan, started=MONDAY)
    red = case(failed, cell, "x.y", Outcome.FAILED, failure_class=FailureClass.CONTRACT, by_assertion=True)
    again = header(plan, started=MONDAY + timedelta(hours=1), reproduction=True)
    cut = header(plan, started=MONDAY + timedelta(hours=2))
    load(
        store,
        builders.bundle(tmp_path / "failed", failed, [red], end=1),
        builders.bundle(tmp_path / "again", again, [case(again, cell, "x.y")]),
        builders.bundle(tmp_path / "cut", cut, [], end=None),
    )
    (cell_week,) = gather(store, iso_week("2026-W49")).cells
    assert list(cell_week.state.failing) == ["x.y"]


def test_only_smoke_and_killed_runs_give_no_green(tmp_path, store):
    run = header([planned_cell(CELLS[0], ["x.y"]), planned_cell(CELLS[1], ["x.y"])])
    load(store, builders.bundle(tmp_path / "b", run, [case(run, CELLS[0], "x.y", flags=(Flag.SMOKE,))], end=None))
    markdown, _, page = read(store)
    assert markdown.startswith("# NOTHING MEASURED")
    assert "0 of 2 cells passed" in page.text
    assert "cut short" in page.text
    assert not [one for one in page.elements if "square passed" in str(one[1].get("class")) and "title" in one[1]]


def test_failures_are_counted_by_class_over_the_whole_week(tmp_path, store):
    for day, failure_class in enumerate((FailureClass.OOM_HOST, FailureClass.OOM_HOST, FailureClass.CONTRACT)):
        outcomes = {(CELLS[0], "x.y"): {"outcome": Outcome.FAILED, "failure_class": failure_class}}
        started = MONDAY + timedelta(days=day)
        load(
            store,
            builders.night(tmp_path / f"{day}", started=started, cells=CELLS[:1], cases=("x.y",), outcomes=outcomes),
        )
    markdown, _, _ = read(store)
    assert "- `oom.host`: 2 failing records in 1 cell, of `x.y`" in markdown
    assert "- `contract`: 1 failing record in 1 cell, of `x.y`" in markdown


def test_memory_by_night_leaves_out_machines_of_another_class(tmp_path, store):
    other = header([]).machine.model_copy(update={"machine_class": "epyc-64c"})
    for day, changes in enumerate(({"machine": other}, {})):
        started = MONDAY + timedelta(days=day)
        peak = {(CELLS[0], "x.y"): {"peak_bytes": (900 if changes else 700) << 20}}
        load(
            store,
            builders.night(
                tmp_path / f"{day}", started=started, cells=CELLS[:1], cases=("x.y",), outcomes=peak, **changes
            ),
        )
    markdown, _, _ = read(store)
    assert "700 MiB | 700 MiB |" in markdown
    assert "900 MiB" not in markdown
