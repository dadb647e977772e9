from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.errors import RequestError, UserError
from harness.results.bundle import BundleWriter, read_bundle
from harness.results.records import CaseRecord, StepRecord
from harness.results.vocabulary import Outcome
from tests.reports import builders

CELL = builders.CELLS[0]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def run():
    return builders.header([builders.planned_cell(CELL)])


def test_the_header_is_on_disk_before_anything_is_recorded(tmp_path, run):
    BundleWriter(tmp_path / "b", run)
    bundle = read_bundle(tmp_path / "b")
    assert bundle.header == run
    assert bundle.records == ()
    assert not bundle.complete


def test_records_come_back_as_they_were_written(tmp_path, run):
    records = [
        builders.case(run, CELL, "a.b", Outcome.FAILED, message="line\nbreak \u2028 ünï", notes={"seeds": [1, 2]}),
        *builders.steps(run, CELL, count=2),
    ]
    bundle = builders.bundle(tmp_path / "b", run, records, end=1)
    assert list(bundle.records[:-1]) == records
    assert bundle.complete
    assert bundle.end is not None
    assert bundle.end.exit_code == 1
    assert bundle.damaged == ()


def test_numbers_that_are_not_finite_come_back(tmp_path, run):
    record = builders.case(
        run,
        CELL,
        "a.b",
        metrics={"nan": math.nan, "inf": math.inf, "minus": -math.inf, "none": None},
        notes={"x": math.nan},
    )
    back = builders.bundle(tmp_path / "b", run, [record]).records[0]
    assert isinstance(back, CaseRecord)
    assert math.isnan(back.metrics["nan"])
    assert back.metrics["inf"] == math.inf
    assert back.metrics["minus"] == -math.inf
    assert back.metrics["none"] is None
    assert math.isnan(back.notes["x"])


def test_output_that_is_no_text_does_not_cost_the_record(tmp_path, run):
    record = builders.case(
        run, CELL, "a.b", Outcome.CRASHED, detail=b"core \xff dumped".decode("utf-8", "surrogateescape")
    )
    back = builders.bundle(tmp_path / "b", run, [record]).records[0]
    assert isinstance(back, CaseRecord)
    assert back.outcome is Outcome.CRASHED
    assert back.detail == "core \\udcff dumped"


def test_a_torn_last_line_is_damage_and_the_rest_is_kept(tmp_path, run):
    records = [builders.case(run, CELL, f"a.{number}") for number in range(3)]
    builders.bundle(tmp_path / "b", run, records, end=None)
    path = tmp_path / "b" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    bundle = read_bundle(tmp_path / "b")
    assert list(bundle.records) == records[:2]
    assert [damage.line for damage in bundle.damaged] == [3]
    assert "cut short" in bundle.damaged[0].why


def test_a_torn_line_does_not_swallow_the_next_writers_record(tmp_path, run):
    record = builders.case(run, CELL, "a.b")
    writer = BundleWriter(tmp_path / "b", run)
    writer.append(record)
    with (tmp_path / "b" / "results.jsonl").open("ab") as file:
        file.write(b'{"kind": "case", "run_id": "2026')
    writer.append(record)
    bundle = read_bundle(tmp_path / "b")
    assert bundle.records == (record, record)
    assert bundle.lines == (1, 3)
    assert [(damage.line, damage.why) for damage in bundle.damaged] == [(2, "not a record")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\x00\xff\xfe", "not a record"),
        (b"[" * 100_000, "not a record"),
        (b'{"kind": "case"}', "not a record"),
        (b'{"kind": "verdict", "schema_version": 2}', "schema version 2, and this rl-gauntlet reads up to 1"),
    ],
)
def test_a_foreign_line_is_told_with_its_number(tmp_path, run, line, why):
    writer = BundleWriter(tmp_path / "b", run)
    (tmp_path / "b" / "results.jsonl").write_bytes(line + b"\n")
    writer.append(builders.case(run, CELL, "a.b"))
    bundle = read_bundle(tmp_path / "b")
    assert len(bundle.records) == 1
    assert [(damage.line, damage.why) for damage in bundle.damaged] == [(1, why)]


def test_records_of_a_newer_schema_or_another_run_are_left_out(tmp_path, run):
    record = builders.case(run, CELL, "a.b")
    newer = record.model_copy(update={"schema_version": 2})
    other = record.model_copy(update={"run_id": "elsewhere"})
    bundle = builders.bundle(tmp_path / "b", run, [newer, other, record])
    assert bundle.records[0] == record
    assert [damage.line for damage in bundle.damaged] == [1, 2]
    assert "elsewhere" in bundle.damaged[1].why


def damaged_header(**changes):
    def damage(folder: Path) -> None:
        path = folder / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "run.json").unlink(), "it has no run.json"),
        (lambda folder: (folder / "run.json").write_bytes(b"\x00\xff{"), "is not the header of a run"),
        (lambda folder: (folder / "run.json").write_text("[]"), "is not the header of a run"),
        (damaged_header(workers="many"), "workers"),
        (damaged_header(schema_version=9), "has schema version 9"),
        (damaged_header(schema_version=9, new_key=1), "upgrade rl-gauntlet"),
    ],
)
def test_what_is_no_bundle_is_refused_in_one_sentence(tmp_path, run, damage, said):
    BundleWriter(tmp_path / "b", run)
    damage(tmp_path / "b")
    with pytest.raises(RequestError) as refusal:
        read_bundle(tmp_path / "b")
    assert said in str(refusal.value)
    assert str(tmp_path / "b") in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_that_is_not_there_and_a_file_are_refused(tmp_path):
    with pytest.raises(RequestError, match="does not exist"):
        read_bundle(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="is not a bundle"):
        read_bundle(tmp_path / "file")


def test_a_second_run_does_not_write_into_the_first_ones_folder(tmp_path, run):
    BundleWriter(tmp_path / "b", run)
    with pytest.raises(RequestError, match="already holds a run"):
        BundleWriter(tmp_path / "b", run)


def test_a_full_disk_is_told_and_leaves_whole_lines(tmp_path, run):
    writer = BundleWriter(tmp_path / "b", run)
    small, large = builders.case(run, CELL, "a.b"), builders.case(run, CELL, "a.c", detail="x" * 100_000)
    writer.append(small)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then the kernel answers the write with an error
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot append to .*results\.jsonl.*make room"):
            writer.append(large)
        writer.append(small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    bundle = read_bundle(tmp_path / "b")
    assert bundle.records == (small, small)
    assert bundle.damaged == ()


def append_many(writer: BundleWriter, run, worker: int, count: int) -> None:
    for number in range(count):
        writer.append(builders.case(run, CELL, f"worker.{worker}-{number}", detail="x" * (number * 997 % 20_000)))


def test_lines_of_threads_and_processes_do_not_interleave(tmp_path, run):
    writer = BundleWriter(tmp_path / "b", run)
    context = multiprocessing.get_context("fork")  # the same object on both sides of the fork
    processes = [context.Process(target=append_many, args=(writer, run, worker, 100)) for worker in range(3)]
    threads = [threading.Thread(target=append_many, args=(writer, run, worker, 100)) for worker in range(3, 6)]
    for one in (*processes, *threads):
        one.start()
    for one in (*processes, *threads):
        one.join(60)
    bundle = read_bundle(tmp_path / "b")
    assert bundle.damaged == ()
    names = [record.case for record in bundle.records if isinstance(record, CaseRecord)]
    assert sorted(names) == sorted(f"worker.{worker}-{number}" for worker in range(6) for number in range(100))


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from harness.results.bundle import BundleWriter
from tests.reports import builders

run = builders.header([builders.planned_cell(builders.CELLS[0])])
writer = BundleWriter(Path(sys.argv[1]), run)
print("ready", flush=True)
number = 0
while True:
    writer.append(builders.case(run, builders.CELLS[0], f"a.{number}", detail="x" * 30_000))
    writer.append(builders.steps(run, builders.CELLS[0], count=1)[0])
    number += 1
    print(number, flush=True)
"""


@pytest.mark.parametrize("attempt", range(4))
def test_a_writer_killed_at_any_moment_leaves_what_it_had_recorded(tmp_path, attempt):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path / "b")],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(random.Random(attempt).uniform(0.0, 0.3))
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read().split()
    process.wait()
    bundle = read_bundle(tmp_path / "b")
    promised = int(said[-1]) if said else 0
    assert not bundle.complete
    assert len(bundle.damaged) <= 1
    assert len([record for record in bundle.records if isinstance(record, CaseRecord)]) >= promised
    assert len([record for record in bundle.records if isinstance(record, StepRecord)]) >= promised
