"""How commands speak: tables on a terminal, plain lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def on_terminal() -> bool:
    """Whether a person is looking at stdout."""
    return sys.stdout.isatty()


def print_json(data: Any) -> None:
    """Strict JSON on stdout: NaN has no place in it."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """A table for a terminal. Texts are shown as they are: no markup in them is obeyed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title or None, title_justify="left", header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
