from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from harness.errors import ExitCode, NothingMeasuredError, RequestError
from harness.results.store import Store
from reports.commands import app
from tests.reports import builders

SMALL = {"cells": builders.CELLS[:1], "cases": ("x.y",)}


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Store(str(tmp_path / "store.sqlite"), create=True) as store:
        store.ingest(builders.night(tmp_path / "b", **SMALL))
    return str(tmp_path / "store.sqlite")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_nightly_writes_the_last_run_of_the_store_and_says_where(target, tmp_path):
    result = invoke("nightly", "--store", target)
    assert result.output == "report: build/reports/nightly-20261130T020000Z.md\n"
    assert (tmp_path / "build/reports/nightly-20261130T020000Z.md").read_text().startswith("# PASSED")


def test_nightly_reads_a_bundle_without_a_store_and_prints_when_asked_to(tmp_path):
    builders.night(tmp_path / "b", **SMALL)
    result = invoke("nightly", "--bundle", tmp_path / "b", "--out", "-")
    assert result.output.startswith("# PASSED · smoke")


def test_weekly_writes_markdown_and_a_page(target, tmp_path):
    result = invoke("weekly", "--store", target, "--week", "2026-W49", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["weekly-2026-W49.html", "weekly-2026-W49.md"]


def test_weekly_takes_the_seven_days_that_end_today(target, tmp_path):
    with Store(target) as store:
        store.ingest(builders.night(tmp_path / "today", started=datetime.now(UTC), **SMALL))
    assert invoke("weekly", "--store", target, "--out", tmp_path / "out").exit_code == 0
    (page,) = (tmp_path / "out").glob("*.html")
    assert "1 of 1 cell passed" in page.read_text()


def test_an_empty_store_and_an_empty_week_measure_nothing(target, tmp_path):
    with Store(str(tmp_path / "empty.sqlite"), create=True):
        pass
    for arguments in (
        ("nightly", "--store", tmp_path / "empty.sqlite"),
        ("weekly", "--store", tmp_path / "empty.sqlite"),
        ("weekly", "--store", target, "--week", "2020-W01"),
    ):
        result = invoke(*arguments)
        assert isinstance(result.exception, NothingMeasuredError)
        assert result.exception.exit_code is ExitCode.NOTHING_MEASURED


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nightly", "--store", "none.sqlite"), "there is no store at"),
        (("nightly", "--bundle", "none"), "does not exist"),
        (("nightly", "--store", "store.sqlite", "--out", "/dev/null/x.md"), "cannot write the report"),
        (("weekly", "--store", "store.sqlite", "--week", "49"), "is not a week"),
        (("weekly", "--store", "b/run.json"), "file is not a database"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_sentence(target, arguments, said):
    error = invoke(*arguments).exception
    assert isinstance(error, RequestError)
    assert said in str(error)
    assert "\n" not in str(error)


def test_the_command_starts_without_the_libraries_that_only_a_report_needs():
    code = (
        "import sys, reports.commands\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'matplotlib', 'jinja2', 'sqlalchemy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
