"""What the documentation shows of matrix files is true of the files."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import RequestError
from harness.matrix.expand import expand
from harness.matrix.load import load_catalogue, load_suite

ROOT = Path(__file__).resolve().parents[3]
YAML_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def test_the_entries_and_the_suite_of_the_contributors_guide_go_together(matrices: Path) -> None:
    suite, model, algorithm = YAML_BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    for name, entry in (("models", model), ("algorithms", algorithm)):
        with (matrices / f"{name}.yaml").open("a", encoding="utf-8") as file:
            file.write("\n" + entry)
    (matrices / "mine.yaml").write_text(suite, encoding="utf-8")
    (placed,) = expand(load_suite(str(matrices / "mine.yaml"), matrices), load_catalogue(matrices)).cells
    assert placed.cell.id == "cpu/llama-tied/grpo-sum/sync/native/dp1"


def test_every_command_line_in_the_readme_names_a_command_and_a_suite_that_exist() -> None:
    from harness.cli.main import COMMANDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^rl-gauntlet (\S+) ?(\S*)", text, re.MULTILINE)
    assert {command for command, _ in lines} == {*COMMANDS, "report"}
    for command, suite in lines:
        if command in ("plan", "run"):
            try:
                load_suite(suite)
            except RequestError as error:
                raise AssertionError(f"README: {error}") from error
