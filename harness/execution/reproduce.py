"""The one shell line that shows a failure alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

_LONGEST_INPUT = 16_000  # characters; the kernel takes 128 KiB in one argument, a reader far less


def reproduce_command(
    *,
    suite: str,
    cell: str,
    case: str,
    seed: int,
    examples: int,
    shrunk_input: Mapping[str, Any] | None,
    mutant: str | None = None,
    matrices: str | None = None,
) -> str:
    """Replay the shrunk input where there is one, else draw again from the same seed.

    >>> reproduce_command(suite="smoke", cell="c", case="a.b", seed=1, examples=50, shrunk_input={"n": 0})
    'rl-gauntlet run smoke --cell c --case a.b --case-seed 1 --input \\'{"n":0}\\''
    """
    words = ["rl-gauntlet", "run", suite, "--cell", cell, "--case", case, "--case-seed", str(seed)]
    body = json.dumps(shrunk_input, separators=(",", ":")) if shrunk_input is not None else ""
    if body and len(body) <= _LONGEST_INPUT:
        words += ["--input", body]
    else:
        words += ["--examples", str(examples)]
    if mutant:
        words += ["--mutant", mutant]
    if matrices:
        words += ["--matrices", matrices]
    return shlex.join(words)
