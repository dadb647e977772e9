from __future__ import annotations

import json
import math
import multiprocessing
import sqlite3
from datetime import timedelta

import pytest
import sqlalchemy as sa

from harness.errors import RequestError
from harness.results.bundle import BundleWriter, read_bundle
from harness.results.store import Store
from harness.results.store_schema import metadata
from harness.results.vocabulary import Outcome
from tests.reports import builders

CELL = builders.CELLS[0]
SMALL = {"cells": builders.CELLS[:2], "cases": ("x.y", "train.learns")}


@pytest.fixture
def target(tmp_path):
    return str(tmp_path / "store.sqlite")


def contents(target):
    """Every row of every table."""
    with sqlite3.connect(target) as connection:
        return {table: connection.execute(f'SELECT * FROM "{table}"').fetchall() for table in metadata.tables}


def test_a_run_comes_back_as_its_bundle_was(tmp_path, target):
    bundle = builders.night(tmp_path / "b", **SMALL)
    with Store(target, create=True) as store:
        loaded = store.ingest(bundle)
    assert (loaded.new_run, loaded.results, loaded.step_metrics) == (True, 4, 2 * 3 * 12 * 9)
    with Store(target) as store:
        back = store.bundle(bundle.header.run_id)
        without_steps = store.bundle(bundle.header.run_id, steps=False)
    assert back == bundle
    assert [record.kind for record in without_steps.records] == ["case"] * 4 + ["end"]


def test_what_was_not_measured_and_what_is_no_number_are_told_apart(tmp_path, target):
    run = builders.header([builders.planned_cell(CELL)])
    metrics = {"none": None, "nan": math.nan, "inf": math.inf, "minus": -math.inf}
    step = builders.steps(run, CELL, count=1, seeds=(1,))[0].model_copy(update={"metrics": metrics})
    with Store(target, create=True) as store:
        store.ingest(builders.bundle(tmp_path / "b", run, [step]))
        back = store.bundle(run.run_id).records[0].metrics
    assert back["none"] is None
    assert math.isnan(back["nan"])
    assert (back["inf"], back["minus"]) == (math.inf, -math.inf)


def test_loading_twice_changes_nothing(tmp_path, target):
    bundle = builders.night(tmp_path / "b", **SMALL)
    with Store(target, create=True) as store:
        store.ingest(bundle)
    before = contents(target)
    with Store(target, create=True) as store:
        again = store.ingest(bundle)
    assert (again.new_run, again.results, again.step_metrics) == (False, 0, 0)
    assert contents(target) == before


def test_a_bundle_that_grew_adds_only_what_is_new(tmp_path, target):
    run = builders.header([builders.planned_cell(CELL)])
    writer = BundleWriter(tmp_path / "b", run)
    writer.append(builders.case(run, CELL, "x.y"))
    with (tmp_path / "b" / "results.jsonl").open("ab") as file:
        file.write(b'{"kind": "ca')
    with Store(target, create=True) as store:
        store.ingest(read_bundle(tmp_path / "b"))
        assert not store.bundle(run.run_id).complete
        writer.append(builders.case(run, CELL, "x.z", Outcome.FAILED))
        for step in builders.steps(run, CELL, count=2, seeds=(1,)):
            writer.append(step)
        writer.finish(1)
        whole = read_bundle(tmp_path / "b")
        loaded = store.ingest(whole)
        assert (loaded.new_run, loaded.results, loaded.step_metrics) == (False, 1, 18)
        assert store.bundle(run.run_id) == whole


def test_an_older_copy_of_a_bundle_does_not_undo_its_end(tmp_path, target):
    run = builders.header([builders.planned_cell(CELL)])
    writer = BundleWriter(tmp_path / "b", run)
    writer.append(builders.case(run, CELL, "x.y"))
    older = read_bundle(tmp_path / "b")
    writer.finish(0)
    with Store(target, create=True) as store:
        store.ingest(read_bundle(tmp_path / "b"))
        store.ingest(older)
        assert store.bundle(run.run_id).complete


def test_another_run_under_the_same_id_is_refused(tmp_path, target):
    with Store(target, create=True) as store:
        store.ingest(builders.night(tmp_path / "a", **SMALL))
        before = contents(target)
        with pytest.raises(RequestError, match="holds another run with the id"):
            store.ingest(builders.night(tmp_path / "b", **SMALL, commit="another"))
    assert contents(target) == before


def test_a_record_that_was_changed_after_loading_is_refused(tmp_path, target):
    bundle = builders.night(tmp_path / "a", **SMALL)
    with Store(target, create=True) as store:
        store.ingest(bundle)
        path = tmp_path / "a" / "results.jsonl"
        path.write_text(path.read_text().replace('"outcome":"passed"', '"outcome":"failed"', 1))
        with pytest.raises(RequestError, match="records are written once"):
            store.ingest(read_bundle(tmp_path / "a"))
        assert store.bundle(bundle.header.run_id) == bundle


def load_all(target, folders):
    with Store(target, create=True) as store:
        for folder in folders:
            store.ingest(read_bundle(folder))


def test_several_processes_load_the_same_bundles_into_a_new_store(tmp_path, target):
    nights = [builders.MONDAY + timedelta(days=day) for day in range(3)]
    folders = [tmp_path / f"{night:%d}" for night in nights]
    bundles = [builders.night(folder, started=night, **SMALL) for folder, night in zip(folders, nights, strict=True)]
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=load_all, args=(target, folders[turn % 3 :] + folders[: turn % 3])) for turn in range(5)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 5
    with Store(target) as store:
        assert store.run_ids() == [bundle.header.run_id for bundle in bundles]
        assert [store.bundle(bundle.header.run_id) for bundle in bundles] == bundles


def test_runs_are_listed_by_time_without_those_of_mutants(tmp_path, target):
    with Store(target, create=True) as store:
        for day in (2, 0, 1):
            store.ingest(builders.night(tmp_path / f"{day}", started=builders.MONDAY + timedelta(days=day), **SMALL))
        mutant = {"mutant": "loss.split-invariant:mean-of-means", "run_id": "mutant"}
        store.ingest(builders.night(tmp_path / "m", started=builders.MONDAY + timedelta(days=1), **SMALL, **mutant))
        assert store.run_ids() == ["20261130T020000Z", "20261201T020000Z", "20261202T020000Z"]
        one_day = builders.MONDAY + timedelta(days=1)
        assert store.run_ids(since=one_day, until=one_day + timedelta(days=1)) == ["20261201T020000Z"]


def test_a_start_in_another_time_zone_is_filed_under_its_utc_time(tmp_path, target):
    with Store(target, create=True) as store:
        store.ingest(builders.night(tmp_path / "b", **SMALL, run_id="r"))
        header = json.loads((tmp_path / "b" / "run.json").read_text())
        assert store.run_ids(since=builders.MONDAY, until=builders.MONDAY + timedelta(seconds=1)) == ["r"]
        header |= {"run_id": "east", "started": "2026-11-30T10:00:00+08:00"}
        (tmp_path / "b" / "run.json").write_text(json.dumps(header))
        store.ingest(read_bundle(tmp_path / "b"))
        assert store.run_ids(since=builders.MONDAY, until=builders.MONDAY + timedelta(seconds=1)) == ["east", "r"]


def test_a_start_that_is_no_time_is_refused(tmp_path, target):
    bundle = builders.night(tmp_path / "b", **SMALL)
    bundle = type(bundle)(
        header=bundle.header.model_copy(update={"started": "yesterday"}), records=bundle.records, lines=bundle.lines
    )
    with Store(target, create=True) as store, pytest.raises(RequestError, match='"yesterday", which is not ISO 8601'):
        store.ingest(bundle)


def random_bytes(path):
    path.write_bytes(b"\x93\x00rubbish" * 500)


def text(path):
    path.write_text("run,cell,outcome\n" * 500)


def folder(path):
    path.mkdir()


def other_database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")


def newer_store(path):
    with Store(str(path), create=True):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rl_gauntlet_schema SET version = 99")


def truncated_store(path):
    with Store(str(path), create=True):
        pass
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (random_bytes, "file is not a database"),
        (text, "file is not a database"),
        (folder, "is a folder"),
        (other_database, "is not a store of rl-gauntlet: its tables are invoices"),
        (newer_store, "schema version 99"),
        (truncated_store, "malformed"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_what_is_no_store_is_refused_in_one_sentence_and_left_as_it_was(tmp_path, make, said, create):
    path = tmp_path / "thing"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(RequestError) as refusal:
        Store(str(path), create=create)
    assert said in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nonsense://x", "no driver for the store"),
        ("://", "is not a database URL"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "would be gone with this command"),
        ("sqlite:///x.sqlite?timeout=abc", "cannot be opened"),
        ("postgresql+nonsense://user:secret@host/db", "no driver for the store"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_without_its_password(target, said):
    with pytest.raises(RequestError, match=said) as refusal:
        Store(target, create=True)
    assert "secret" not in str(refusal.value)


def test_a_store_that_is_not_there_is_only_created_when_asked_to(tmp_path):
    path = tmp_path / "new" / "store.sqlite"
    with pytest.raises(RequestError, match="there is no store at"):
        Store(str(path))
    assert not path.parent.exists()
    with Store(str(path), create=True) as store:
        assert store.run_ids() == []


def test_an_unknown_run_is_refused(target):
    with Store(target, create=True) as store, pytest.raises(RequestError, match='holds no run "nope"'):
        store.bundle("nope")


def test_a_number_too_large_for_the_database_is_told(tmp_path, target):
    run = builders.header([builders.planned_cell(CELL)])
    step = builders.steps(run, CELL, count=1, seeds=(2**70,))[0]
    with Store(target, create=True) as store, pytest.raises(RequestError, match="64 bits"):
        store.ingest(builders.bundle(tmp_path / "b", run, [step]))


def test_tables_can_be_created_on_postgresql():
    dialect = sa.dialects.registry.load("postgresql")()
    statements = [str(sa.schema.CreateTable(table).compile(dialect=dialect)) for table in metadata.sorted_tables]
    assert any("BIGINT" in statement for statement in statements)
