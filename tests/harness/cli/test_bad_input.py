"""Every wrong request ends in one sentence: where, what, the value, the nearest valid name; the right exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.matrix.load import CATALOGUES, MATRICES

HEAD = "suite: bad\ndescription: a test\n"
CELL = "{hardware: cpu, model: qwen3, algorithm: ppo}"
GOOD = f"{HEAD}cells: [{CELL}]\n"


@pytest.fixture
def matrices(tmp_path: Path) -> Path:
    for name in CATALOGUES:
        shutil.copy(MATRICES / f"{name}.yaml", tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD.replace("bad", "good"), encoding="utf-8")
    return tmp_path


BAD_SUITES = {
    "unknown key": (f"{HEAD}combin: []\n", 3, ['unknown key "combin"', 'did you mean "combine"?']),
    "unknown key, deep": (
        f"{HEAD}cells:\n  - hardware: cpu\n    modle: qwen3\n",
        5,
        ['unknown key "modle"', 'did you mean "mode"?'],
    ),
    "unknown key in limits": (f"{GOOD}limits: {{process_gb: 3}}\n", 4, ['"process_gb"', 'did you mean "process_gib"?']),
    "unknown model": (
        f"{HEAD}combine:\n  - hardware: cpu\n    model:\n      - qwen3\n      - qwen4\n    algorithm: ppo\n",
        7,
        ['unknown model "qwen4"', 'did you mean "qwen3'],
    ),
    "unknown model among the defaults": (
        f"{HEAD}defaults:\n  model: gemma\ncells: [{{hardware: cpu, algorithm: ppo}}]\n",
        4,
        ['unknown model "gemma"', 'did you mean "gemma4"?'],
    ),
    "unknown algorithm": (
        f"{HEAD}cells: [{{hardware: cpu, model: qwen3, algorithm: pppo}}]\n",
        3,
        ['unknown algorithm "pppo"', 'did you mean "ppo"?'],
    ),
    "unknown hardware": (
        f"{HEAD}defaults: {{hardware: gpu}}\ncells: [{{model: qwen3, algorithm: ppo}}]\n",
        3,
        ['unknown hardware "gpu"', 'did you mean "cpu"?'],
    ),
    "unknown mode": (f"{HEAD}defaults: {{mode: synk}}\n", 3, ['unknown mode "synk"', 'did you mean "sync"?']),
    "unknown engine": (
        f"{HEAD}cells: [{{engine: naïve, hardware: cpu}}]\n",
        3,
        ['unknown engine "naïve"', 'did you mean "native"?'],
    ),
    "unknown size": (f"{HEAD}defaults: {{size: tinny}}\n", 3, ['unknown size "tinny"', 'did you mean "tiny"?']),
    "unknown dtype": (f"{HEAD}defaults: {{dtype: fp32}}\n", 3, ['unknown dtype "fp32"', "float32"]),
    "unknown topology": (f"{HEAD}defaults: {{topology: tp2}}\n", 3, ['"tp2"', "dp1, dp2"]),
    "unknown subject": (
        f"{HEAD}cells: [{{subject: refrence, hardware: cpu, model: qwen3, algorithm: ppo}}]\n",
        3,
        ['no subject "refrence"', 'did you mean "reference"?'],
    ),
    "unknown axis in a rule": (
        f"{GOOD}exclude:\n  - match: {{models: qwen3}}\n    reason: slow\n",
        5,
        ['unknown axis "models"', 'did you mean "model"?'],
    ),
    "unknown setting": (
        f"{HEAD}cells:\n  - {CELL[:-1]},\n     settings: {{algorithm: {{clip_lo: 0.1}}}}}}\n",
        5,
        ["algorithm.clip_lo", 'did you mean "clip_low"?'],
    ),
    "setting out of range": (
        f"{HEAD}defaults:\n  settings:\n    rollout:\n      temperature: -1\ncells: [{CELL}]\n",
        6,
        ["rollout.temperature", "-1"],
    ),
    "no hardware": (
        f"{HEAD}cells:\n  - {{model: qwen3, algorithm: ppo}}\n",
        4,
        ["names no hardware", "defaults"],
    ),
    "wrong type": (f"{HEAD}combine: 7\n", 3, ['"combine" is 7; it should be a list']),
    "text for a number": (
        f"{GOOD}learn:\n  - match: {{model: qwen3}}\n    seeds: [1, 2, 3]\n    confidence: high\n    steps: 3\n",
        7,
        ["confidence", '"high"', "number"],
    ),
    "a list of cells under cells": (
        f"{HEAD}cells: [{{hardware: cpu, model: [qwen3, gemma4], algorithm: ppo}}]\n",
        3,
        ["one cell", "combine"],
    ),
    "a mapping for a suite": ("- 1\n- 2\n", 1, ["the file is a list; it should be a mapping"]),
    "no reason": (f"{GOOD}exclude:\n  - match: {{model: qwen3}}\n", 5, ['"exclude[0].reason" is missing']),
    "an empty reason": (
        f'{GOOD}exclude:\n  - match: {{model: qwen3}}\n    reason: " "\n',
        6,
        ['reason" is empty'],
    ),
    "an exclusion of everything": (
        f"{GOOD}exclude:\n  - match: {{}}\n    reason: all\n",
        5,
        ['"exclude[0].match" has 0 entries; it should have at least 1'],
    ),
    "a stale exclusion": (
        f"{GOOD}exclude:\n  - match:\n      model: gemma4\n    reason: slow\n",
        6,
        ['model "gemma4" matches no cell', "qwen3"],
    ),
    "a stale learning rule": (
        f"{GOOD}learn: [{{match: {{algorithm: grpo}}, seeds: [1, 2, 3], confidence: 0.9, steps: 3}}]\n",
        4,
        ['algorithm "grpo" matches no cell', "ppo"],
    ),
    "two learning rules": (
        f"{GOOD}learn:\n"
        "  - {match: {model: qwen3}, seeds: [1, 2, 3], confidence: 0.9, steps: 3}\n"
        "  - {match: {algorithm: ppo}, seeds: [1, 2, 3], confidence: 0.9, steps: 3}\n",
        6,
        ["has a learning rule already"],
    ),
    "one seed": (
        f"{GOOD}learn: [{{match: {{model: qwen3}}, seeds: [1], confidence: 0.9, steps: 3}}]\n",
        4,
        ['"learn[0].seeds" has 1 entries; it should have at least 3'],
    ),
    "a seed below zero": (
        f"{GOOD}learn: [{{match: {{model: qwen3}}, seeds: [1, 2, -3], confidence: 0.9, steps: 3}}]\n",
        4,
        ['"learn[0].seeds[2]" is -3; it should be greater than or equal to 0'],
    ),
    "a seed twice": (
        f"{GOOD}learn: [{{match: {{model: qwen3}}, seeds: [1, 2, 2], confidence: 0.9, steps: 3}}]\n",
        4,
        ["distinct seeds"],
    ),
    "an unknown include": (f"{GOOD}include: [god]\n", 4, ['no suite "god"', 'did you mean "good"?']),
    "a suite that includes itself": (f"{GOOD}include:\n  - bad\n", 5, ["circle", "bad → bad"]),
    "broken YAML": (f"{HEAD}cells: [{CELL}\ncombine: []\n", 4, ["not valid YAML"]),
    "a key twice": (f"{GOOD}cells: [{CELL}]\n", 4, ['key "cells" is there twice', "line 3"]),
    "an alias": (f"{HEAD}cells: [&c {CELL}, *c]\n", 3, ['alias "*c"']),
    "something to execute": (f"{HEAD}cells: !!python/object/apply:os.getcwd []\n", 3, ["tag", "not allowed"]),
    "too many devices": (
        f"{HEAD}cells:\n  - {{hardware: cpu, model: qwen3, algorithm: ppo, topology: dp99}}\n",
        4,
        ["nothing can run cell cpu/qwen3/ppo/sync/native/dp99", "99 devices", "exclude it with a reason"],
    ),
}


@pytest.mark.parametrize("name", BAD_SUITES)
def test_a_bad_suite_is_refused_in_one_sentence(command, matrices: Path, name: str) -> None:
    text, line, says = BAD_SUITES[name]
    (matrices / "bad.yaml").write_text(text, encoding="utf-8")
    ended = command("plan", "bad", "--matrices", str(matrices))
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith(f"rl-gauntlet: {matrices}/bad.yaml:{line}: "), ended.err
    assert ended.err.count("\n") == 1
    for part in says:
        assert part in ended.err


BAD_CATALOGUES = {
    "unknown key": (
        "hardware",
        "x:\n  platform: cpu\n  description: d\n  devices: 3\n",
        4,
        ['"devices"', "devices_per_node"],
    ),
    "missing key": ("hardware", "x:\n  platform: cpu\n", 1, ['"x.description" is missing']),
    "wrong type": (
        "hardware",
        "x:\n  platform: cpu\n  description: d\n  devices_per_node: many\n",
        4,
        ["devices_per_node", '"many"', "whole number"],
    ),
    "no devices": (
        "hardware",
        "x:\n  platform: cpu\n  description: d\n  devices_per_node: 0\n",
        4,
        ["devices_per_node", "0", "greater than or equal to 1"],
    ),
    "unknown size": (
        "models",
        "x:\n  description: d\n  sizes:\n    tinny: {architecture: qwen3}\n",
        4,
        ['unknown size "tinny"', 'did you mean "tiny"?'],
    ),
    "a model without sizes": ("models", "x:\n  description: d\n  sizes: {}\n", 1, ["sizes", "extends"]),
    "a name that is none": ("algorithms", "PPO/x:\n  description: d\n  settings: {}\n", 1, ['"PPO/x"', "lower-case"]),
    "a list": ("algorithms", "- ppo\n", 1, ["the file is a list; it should be a mapping"]),
    "empty": ("models", "", 1, ["is empty"]),
    "broken": ("models", "x: {description: d\ny: 1\n", 2, ["not valid YAML"]),
}


@pytest.mark.parametrize("name", BAD_CATALOGUES)
def test_a_bad_catalogue_is_refused_in_one_sentence(command, matrices: Path, name: str) -> None:
    catalogue, text, line, says = BAD_CATALOGUES[name]
    (matrices / f"{catalogue}.yaml").write_text(text, encoding="utf-8")
    ended = command("plan", "good", "--matrices", str(matrices))
    assert ended.code == 2
    assert ended.err.startswith(f"rl-gauntlet: {matrices}/{catalogue}.yaml:{line}: "), ended.err
    assert ended.err.count("\n") == 1
    for part in says:
        assert part in ended.err


REQUESTS = {
    "unknown suite": (["plan", "smok"], 2, ['no suite "smok"', 'did you mean "smoke"?']),
    "no suite file": (["plan", "nowhere/smoke.yaml"], 2, ['no suite file "nowhere/smoke.yaml"']),
    "a catalogue is no suite": (["plan", "models"], 2, ['no suite "models"']),
    "no matrices": (
        ["plan", "smoke", "--matrices", "/nonexistent"],
        2,
        ["/nonexistent/hardware.yaml", "cannot be read"],
    ),
    "unknown model": (["plan", "smoke", "--model", "qwen33"], 2, ['unknown model "qwen33"', '"qwen3"']),
    "unknown algorithm": (["plan", "smoke", "--algorithm", "grop"], 2, ['unknown algorithm "grop"', '"grpo"']),
    "unknown hardware": (["plan", "smoke", "--hardware", "mi300x"], 2, ['unknown hardware "mi300x"', "cpu"]),
    "unknown case": (["plan", "smoke", "--case", "rollout.empty"], 2, ["unknown case", '"rollout.empty-sequence"']),
    "unknown cell": (["plan", "smoke", "--cell", "cpu/llama"], 2, ['unknown cell "cpu/llama"', "known: cpu/"]),
    "empty selection": (["plan", "smoke", "--topology", "dp8"], 3, ["no cell for --topology dp8"]),
    "empty glob": (["plan", "smoke", "--case", "nothing*"], 3, ["no case matches nothing*"]),
    "unknown command": (["plam"], 2, ['no command "plam"', 'did you mean "plan"?']),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrong_request_is_refused_in_one_sentence(command, name: str) -> None:
    arguments, code, says = REQUESTS[name]
    ended = command(*arguments)
    assert ended.code == code
    assert ended.out == ""
    assert ended.err.startswith("rl-gauntlet: ")
    assert ended.err.count("\n") == 1
    for part in says:
        assert part in ended.err


USAGE = {
    "unknown option": (["plan", "smoke", "--modle", "x"], ["No such option", "--mod"]),
    "an option without its value": (["plan", "smoke", "--model"], ["--model", "requires an argument"]),
    "no suite": (["plan"], ["Missing argument"]),
    "one argument too many": (["plan", "smoke", "again"], ["again"]),
}


@pytest.mark.parametrize("name", USAGE)
def test_a_wrong_option_ends_in_usage(command, name: str) -> None:
    arguments, says = USAGE[name]
    ended = command(*arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    for part in says:
        assert part in ended.err


def test_an_empty_suite_measures_nothing(command, matrices: Path) -> None:
    (matrices / "bad.yaml").write_text(HEAD, encoding="utf-8")
    ended = command("plan", "bad", "--matrices", str(matrices))
    assert ended.code == 3
    assert "suite bad has no cells" in ended.err
