"""A matrix as pytest items: a cell on one worker, addressable by node id, with records in a bundle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from harness.results.bundle import read_bundle
from harness.results.records import CaseRecord
from harness.results.vocabulary import Outcome

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
suite: two
description: Two models, for the tests of the plug-in
defaults: {hardware: cpu, algorithm: grpo}
combine:
  - model: [qwen3, gemma4]
"""
QUICK = "empty-sequence or logprob-agrees or matches-oracle"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "two.yaml"
    path.write_text(SUITE)
    return path


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def node_ids(output: str) -> list[str]:
    return [line for line in output.splitlines() if "::" in line and " " not in line]


def test_cells_and_cases_are_collected_under_the_suite_file(suite: Path) -> None:
    done = run_pytest(suite.parent, "--matrix", str(suite), "--co", "-q")
    ids = node_ids(done.stdout)
    assert "two.yaml::cpu/qwen3/grpo/sync/native/dp1::loss.matches-oracle" in ids
    assert "two.yaml::cpu/gemma4/grpo/sync/native/dp1::cell.trains" in ids
    assert done.returncode == 0


def test_an_expression_selects_cells_and_cases(suite: Path) -> None:
    done = run_pytest(suite.parent, "--matrix", str(suite), "--co", "-q", "-k", "gemma4 and empty-sequence")
    assert node_ids(done.stdout) == ["two.yaml::cpu/gemma4/grpo/sync/native/dp1::rollout.empty-sequence"]


def test_a_node_id_runs_one_case_in_one_cell_and_leaves_a_bundle(suite: Path, tmp_path: Path) -> None:
    bundle, junit = tmp_path / "bundle", tmp_path / "junit.xml"
    node = f"{suite}::cpu/gemma4/grpo/sync/native/dp1::rollout.empty-sequence"
    done = run_pytest(
        suite.parent, "--matrix", str(suite), node, "--gauntlet-bundle", str(bundle), f"--junit-xml={junit}"
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    (record,) = [record for record in read_bundle(bundle).records if isinstance(record, CaseRecord)]
    assert (record.case, record.outcome) == ("rollout.empty-sequence", Outcome.PASSED)
    properties = {one.get("name"): one.get("value") for one in ET.parse(junit).iter("property")}
    assert (properties["model"], properties["seed"]) == ("gemma4", str(record.seed))


def test_a_cell_stays_on_one_worker(suite: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    done = run_pytest(
        suite.parent,
        *("--matrix", str(suite), "-n", "2", "--dist", "load", "-v", "-k", QUICK),
        *("--gauntlet-bundle", str(tmp_path / "bundle")),
    )
    assert done.returncode == 0, done.stdout
    log.write_text(done.stdout)
    found = re.findall(r"\[(gw\d)\].*?(PASSED|SKIPPED) \S*?two\.yaml::(\S+?)::(\S+)", done.stdout)
    assert len(found) >= 5
    workers: dict[str, set[str]] = {}
    for worker, _, cell, _ in found:
        workers.setdefault(cell, set()).add(worker)
    assert {len(ids) for ids in workers.values()} == {1}, json.dumps(
        {cell: sorted(ids) for cell, ids in workers.items()}
    )
    assert len(set.union(*workers.values())) == 2, "two cells and two workers: each has one"
    outcomes = {record.outcome for record in read_bundle(tmp_path / "bundle").records if isinstance(record, CaseRecord)}
    assert outcomes == {Outcome.PASSED}


def test_workers_collect_the_suite_wherever_pytest_is_started(suite: Path, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = unrelated\n")
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "unrelated" / "test_one.py").write_text("def test_matches_oracle_of_gemma4():\n    pass\n")
    bundle = tmp_path / "bundle"
    done = run_pytest(
        tmp_path,
        *("--matrix", str(suite), "-n", "2", "-k", "gemma4 and empty-sequence", "--gauntlet-bundle", str(bundle)),
    )
    assert done.returncode == 0, done.stdout
    (record,) = [record for record in read_bundle(bundle).records if isinstance(record, CaseRecord)]
    assert (record.case, record.outcome) == ("rollout.empty-sequence", Outcome.PASSED)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--matrix", "smok"), 'did you mean "smoke"?'),
        (("--matrix", "smoke", "--gauntlet-profile", "nightli"), 'did you mean "nightly"?'),
        (("--matrix", "no/such.yaml"), "no/such.yaml"),
    ],
)
def test_a_wrong_request_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run_pytest(tmp_path, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert says in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_without_a_matrix_the_plugin_stays_out_of_the_way(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one() -> None:\n    pass\n")
    (tmp_path / "some.yaml").write_text("a: 1\n")
    done = run_pytest(tmp_path, "-q")
    assert done.returncode == 0
    assert "1 passed" in done.stdout
