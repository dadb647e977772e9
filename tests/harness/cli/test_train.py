"""One training outside any matrix, by the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main

TRAINING = """
model: qwen3
algorithm: grpo
steps: 2
seed: 5
settings:
  task: {prompt: expression, prompts_per_step: 2, eval_prompts: 4}
  batch: {mini_batch: 16, micro_batch: 8}
  warm_start: {steps: 2, batch: 4}
  optimizer: {warmup_steps: 0}
"""


def written(tmp_path: Path, text: str = TRAINING) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


def run(*arguments: str) -> int:
    try:
        return main(["train", *arguments])
    except SystemExit as done:
        return int(done.code or 0)


def test_it_leaves_settings_a_line_a_step_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(written(tmp_path), "--out", str(out), "--threads", "1") == 0
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [0, 1]
    settings = json.loads((out / "settings.json").read_text())
    assert settings["cell"] == "cpu/qwen3/grpo/sync/native/dp1"
    assert settings["settings"]["algorithm"]["advantage"] == "grpo"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["seed"] == 5
    said = capsys.readouterr().out
    assert "[2/2] reward" in said
    assert summary["fingerprint"][:16] in said


def test_options_stand_above_the_file_and_json_is_all_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, seeds = written(tmp_path), []
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        options = ["--out", str(tmp_path / name), "--seed", seed, "--steps", "1", "--threads", "1", "--json"]
        assert run(file, *options) == 0
        seeds.append(json.loads(capsys.readouterr().out))
    assert [answer["seed"] for answer in seeds] == [7, 7, 8]
    assert seeds[0]["steps"] == 1
    assert seeds[0]["fingerprint"] == seeds[1]["fingerprint"] != seeds[2]["fingerprint"]


def test_the_final_policy_is_kept_where_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(written(tmp_path), "--out", str(out), "--steps", "1", "--save", "--threads", "1") == 0
    assert (out / "policy" / "config.json").is_file()
    assert list((out / "policy").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("model: qwen3", "model: qwen"), ('mine.yaml:2: unknown model "qwen"', 'did you mean "qwen3"?')),
        (("algorithm: grpo", "algorithm: grop"), ('mine.yaml:3: unknown algorithm "grop"', 'did you mean "grpo"?')),
        (("steps: 2", "stesp: 2"), ('mine.yaml:4: unknown key "stesp"', '"steps"')),
        (("micro_batch: 8", "micro_batch: 80"), ("mine.yaml:8", "batch.micro_batch 80", "lower it to 16")),
        (("steps: 2, batch: 4", "step: 2"), ("mine.yaml:9", 'unknown key "warm_start.step"')),
        (("seed: 5", "size: huge"), ("mine.yaml:5", '"huge"')),
    ],
)
def test_a_wrong_file_is_told_with_its_line(
    change: tuple[str, str], said: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(written(tmp_path, TRAINING.replace(*change)), "--out", str(tmp_path / "out")) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert message.count("\n") == 1
    for part in said:
        assert part in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("model: {checkpoint: /nowhere, config: null}", ('"model.checkpoint" /nowhere', "no folder")),
        ("model: {config: {vocab_size: 100}}", ("vocabulary of 100 ids", "320", "vocab_size")),
        ("model: {drafter: {kind: assistant}}", ('model.drafter.kind "assistant"', "Qwen3ForCausalLM", '"mtp"')),
        ("model: {lora: {rank: 2, targets: [q_prj]}}", ('"q_prj"', 'did you mean "q_proj"?')),
        (
            "algorithm: {distillation: {teacher_checkpoint: /nowhere}}",
            ('"algorithm.distillation.teacher_checkpoint" /nowhere', "no folder"),
        ),
    ],
)
def test_what_only_the_built_model_can_refuse_is_told_in_a_sentence_too(
    settings: str, said: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = "size: local\n" if "checkpoint: /nowhere, c" in settings else ""
    text = size + TRAINING.lstrip() + f"  {settings.replace(', config: null', '')}\n"
    assert run(written(tmp_path, text), "--out", str(tmp_path / "out"), "--threads", "1") == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for part in said:
        assert part in message


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert run(written(tmp_path), "--out", str(tmp_path / "out")) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nowhere.yaml") == 2
    assert 'no training file "nowhere.yaml"' in capsys.readouterr().err
