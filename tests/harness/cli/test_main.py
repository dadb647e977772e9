"""The command itself: it starts at once, lists its commands, and a plug-in can neither replace nor break them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness.cli import lazy
from harness.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[3]


def in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=ROOT, check=False)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Install the module `a_plugin` with the given source as commands of the given names."""

    def install(source: str, *names: str) -> None:
        (tmp_path / "a_plugin.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "a_plugin", raising=False)
        points = [EntryPoint(name, "a_plugin:app", lazy.PLUGINS) for name in names]
        monkeypatch.setattr(lazy, "entry_points", lambda group: points if group == lazy.PLUGINS else [])

    return install


GROUP = """
import typer
app = typer.Typer()
@app.command()
def nightly(): print("nightly it is")
@app.command()
def weekly(): print("weekly it is")
"""


def test_every_command_is_listed_with_a_line(command) -> None:
    ended = command("--help")
    assert ended.code == 0
    for name, entry in COMMANDS.items():
        assert f"  {name} " in ended.out
        assert entry.help in " ".join(ended.out.split())


def test_without_a_command_help_is_shown(command) -> None:
    ended = command()
    assert ended.code == 2
    assert "Commands:" in ended.out + ended.err


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["plan", "--help"], {"torch", "transformers", "numpy", "hypothesis", "sqlalchemy", "pandas"}),
        (["plan", "smoke"], {"torch", "transformers", "sqlalchemy", "pandas"}),
    ],
)
def test_what_is_not_needed_is_not_imported(arguments: list[str], heavy: set[str]) -> None:
    code = (
        "import sys\nfrom harness.cli.main import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit:\n    pass\n"
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"


def test_a_users_mistake_shows_no_traceback_in_a_real_process() -> None:
    done = in_process("plan", "smoke", "--model", "qwen9")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == 'rl-gauntlet: unknown model "qwen9"; did you mean "qwen3"?\n'


def test_a_closed_pipe_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.main", "plan", "smoke"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=False,
    )
    os.close(writer)
    assert "Traceback" not in done.stderr


def test_a_plugin_adds_a_command_with_subcommands(command, plugin) -> None:
    plugin(GROUP, "extra")
    assert "  extra " in command("--help").out
    ended = command("extra", "weekly")
    assert (ended.code, ended.out) == (0, "weekly it is\n")


def test_a_broken_plugin_is_told_in_one_line_and_breaks_nothing_else(command, plugin) -> None:
    plugin("import no_such_module\n", "extra")
    ended = command("extra")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert 'command "extra" of a_plugin:app cannot be loaded' in ended.err
    assert "no_such_module" in ended.err
    assert command("plan", "smoke").code == 0
    assert "  extra " in command("--help").out


def test_a_plugin_does_not_replace_a_command(command, plugin) -> None:
    plugin(GROUP, "plan")
    assert "can run here" in command("plan", "smoke").out


def test_an_error_of_ours_shows_itself(command, plugin) -> None:
    plugin("def app():\n    raise ZeroDivisionError('a bug')\n", "extra")
    with pytest.raises(ZeroDivisionError):
        command("extra")
