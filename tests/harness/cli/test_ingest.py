from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from harness.cli.ingest import ingest
from harness.errors import RequestError
from tests.reports import builders

SMALL = {"cells": builders.CELLS[:1], "cases": ("x.y",)}


@pytest.fixture
def invoke(tmp_path):
    app = typer.Typer()
    app.command()(ingest)

    def run(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments), "--store", str(tmp_path / "s.sqlite")])

    return run


def test_what_was_added_is_said_run_by_run(tmp_path, invoke):
    builders.night(tmp_path / "b", **SMALL)
    assert invoke(tmp_path / "b").output == "20261130T020000Z: 1 results and 0 step metrics added\n"
    assert invoke(tmp_path / "b").output == "20261130T020000Z: 0 results and 0 step metrics added\n"


def test_a_run_that_was_cut_short_is_named_as_such(tmp_path, invoke):
    run = builders.header([builders.planned_cell(builders.CELLS[0], ["x.y"])])
    builders.bundle(tmp_path / "b", run, [], end=None)
    (tmp_path / "b" / "results.jsonl").write_text("{")
    output = invoke(tmp_path / "b").output
    assert "1 damaged lines left out" in output
    assert "cut short" in output


def test_a_program_gets_one_object(tmp_path, invoke):
    builders.night(tmp_path / "b", **SMALL)
    told = json.loads(invoke(tmp_path / "b", "--json").output)
    assert told["loaded"] == [{"run_id": "20261130T020000Z", "new_run": True, "results": 1, "step_metrics": 0}]
    assert told["refused"] == []


def test_a_bad_bundle_is_refused_and_the_others_are_loaded(tmp_path, invoke):
    builders.night(tmp_path / "b", **SMALL)
    result = invoke(tmp_path / "nothing", tmp_path / "b")
    assert isinstance(result.exception, RequestError)
    assert "does not exist" in str(result.exception)
    assert "20261130T020000Z: 1 results" in result.output
