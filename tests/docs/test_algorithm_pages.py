"""Every algorithm of the catalogue has a page, whose settings are the catalogue's and whose curve was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.matrix.load import load_catalogue
from harness.matrix.yaml_document import read_document
from tests.benchmarks import learning_curves

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
ALGORITHMS = load_catalogue().algorithms


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_page_shows_the_settings_and_the_curve_of_its_algorithm(name: str, tmp_path: Path) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    shown = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    (tmp_path / "shown.yaml").write_text(shown.group(1))
    assert read_document(tmp_path / "shown.yaml").data == ALGORITHMS[name].settings
    curve = json.loads((PAGES / "curves" / f"{name}.json").read_text(encoding="utf-8"))
    assert curve["cell"] == f"cpu/qwen3/{name}/sync/native/dp1"
    for section, settings in ALGORITHMS[name].settings.items():
        measured = curve["settings"][section]
        assert {key: measured[key] for key in settings} == settings, "the curve is of other settings"
    assert len(curve["runs"]) >= 3
    assert all(len(run["reward"]) == curve["steps"] for run in curve["runs"])
    assert (PAGES / "curves" / f"{name}.svg").is_file()
    assert learning_curves.block(name, curve) in text


def test_the_index_names_every_page() -> None:
    text = (PAGES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[(.+?)\]\(\1\.md\)", text, re.MULTILINE)) == set(ALGORITHMS)


def test_the_command_writes_data_picture_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "gspo.md"
    page.write_text(f"# by hand\n\n{learning_curves.BEGIN}\nold\n{learning_curves.END}\n\nalso by hand\n")
    small = {
        "task": {"prompt": "expression", "prompts_per_step": 2, "eval_prompts": 4},
        "batch": {"mini_batch": 16, "micro_batch": 16},
        "warm_start": {"steps": 1, "batch": 4},
        "optimizer": {"warmup_steps": 0},
    }
    arguments = ["--algorithm", "gspo", "--seeds", "1,2", "--steps", "2", "--out", str(tmp_path)]
    pictures = []
    for _ in range(2):
        assert learning_curves.main([*arguments, "--settings", json.dumps(small)]) == 0
        pictures.append((tmp_path / "curves" / "gspo.svg").read_bytes())
    assert pictures[0] == pictures[1], "equal data give equal bytes"
    text = page.read_text()
    assert text.startswith("# by hand\n")
    assert text.endswith("also by hand\n")
    assert "old" not in text
    assert "| mean |" in text
    assert "gspo: greedy reward" in capsys.readouterr().out


def test_no_algorithm_of_that_name_is_no_success(tmp_path: Path) -> None:
    assert learning_curves.main(["--algorithm", "nothing", "--out", str(tmp_path)]) == 1
