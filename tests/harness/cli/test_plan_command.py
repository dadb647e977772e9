"""What `plan` prints says what runs, what does not, and why; for a program in JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.cli import output
from harness.cli import plan as plan_command
from harness.hardware import probe
from harness.matrix.load import MATRICES
from harness.results.records import PlannedCell


def test_plain_lines_name_each_cell_its_evidence_and_every_reason(command) -> None:
    ended = command("plan", "smoke")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert "cpu/qwen3/grpo/sync/native/dp2  device" in lines
    assert any(line.startswith("cpu/gemma4/grpo/sync/native/dp2  left out: ") for line in lines)
    assert any("cell.learns: " in line and "must learn" in line for line in lines)
    assert any("runs in cpu/qwen3/ppo/sync/native/dp1" in line for line in lines)
    assert lines[-1].startswith("suite smoke: 72 of 72 cells can run here, with ")
    assert lines[-1].endswith("; 5 combinations left out")


def test_json_holds_the_whole_plan(command) -> None:
    ended = command("plan", "smoke", "--json", "--model", "gemma4")
    data = json.loads(ended.out)
    cells = [PlannedCell.model_validate_json(json.dumps(cell)) for cell in data["cells"]]
    algorithms = ("ppo", "grpo", "dapo", "distillation")
    assert [cell.cell for cell in cells] == [f"cpu/gemma4/{algorithm}/sync/native/dp1" for algorithm in algorithms]
    assert all(case.reason or case.state == "run" for cell in cells for case in cell.cases)
    assert data["suite"] == "smoke"
    assert data["runnable"] == 4
    assert all(one["reason"] for one in data["excluded"])


def test_a_suite_may_be_a_file_anywhere_and_matrices_a_folder_anywhere(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "suite: mine\ndescription: mine\ncells: [{hardware: cpu, model: qwen3, algorithm: ppo}]\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert command("plan", str(tmp_path / "mine.yaml")).code == 0
    monkeypatch.chdir(tmp_path)
    assert command("plan", "mine.yaml").code == 0
    shutil.copytree(MATRICES, tmp_path / "folder")
    (tmp_path / "folder" / "smoke.yaml").write_text(text, encoding="utf-8")
    assert command("plan", "smoke", "--matrices", "folder").out.splitlines()[-1].startswith("suite mine: 1 of 1")
    monkeypatch.setenv("RL_GAUNTLET_MATRICES", "folder")
    assert command("plan", "smoke").out.splitlines()[-1].startswith("suite mine: 1 of 1")


def test_a_machine_that_can_run_nothing_says_why_and_ends_in_three(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.importlib.util, "find_spec", lambda name: None)
    ended = command("plan", "smoke")
    assert ended.code == 3
    assert "cpu/qwen3/ppo/sync/native/dp1  cannot run here: torch is not installed" in ended.out
    assert "0 of 72 cells can run here" in ended.out


def test_a_terminal_gets_a_table(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_command, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    ended = command("plan", "smoke")
    assert "┃ cell" in ended.out
    assert "left out" in ended.out


def test_texts_in_a_table_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["a"], [["[bold]kept[/bold]"]])
    assert "[bold]kept[/bold]" in capsys.readouterr().out
