"""The command `rl-gauntlet`. Exit codes: 0 passed, 1 a cell failed, 2 wrong request, 3 nothing measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from harness.cli.lazy import Command, lazy_group
from harness.errors import UserError

COMMANDS = {
    "plan": Command(target="harness.cli.plan:plan", help="What would run of a suite, and why not the rest."),
    "run": Command(target="harness.cli.run:run", help="Run a suite and leave a bundle."),
    "train": Command(target="harness.cli.train:train", help="Train once, outside any matrix."),
    "mutants": Command(
        target="harness.cli.mutants:mutants", help="Run the defective variants, and say who catches whom."
    ),
    "ingest": Command(target="harness.cli.ingest:ingest", help="Load bundles into a store."),
    "doctor": Command(target="harness.cli.doctor:doctor", help="What this machine has and can measure."),
}

app = typer.Typer(
    cls=lazy_group(COMMANDS),
    help="Tells whether an LLM post-training stack is correct, stable and fits in memory, cell by cell.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options() -> None:
    """No options of its own; a callback makes typer build a group."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. A mistake of the user's is one sentence on stderr and an exit code; a bug shows itself."""
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="rl-gauntlet")
    except UserError as error:
        print(f"rl-gauntlet: {error}", file=sys.stderr)
        return int(error.exit_code)
    raise AssertionError("typer ends every command by SystemExit")


if __name__ == "__main__":
    sys.exit(main())
