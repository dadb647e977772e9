"""What a mutant is: one named defect of the reference that its case must catch.

A mutant replaces functions of the reference trainer while it is active. It is carried by name to every process of the
cell and counts how often its code ran in a file that all of them append to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Hit = Callable[[], None]
_HITS_PER_PROCESS = 1000  # enough to prove that it ran; more would only cost time


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`install(hit)` puts the defect in place; the defective code calls `hit()` each time it runs."""

    name: str  # `case-id:slug`
    case: str  # the case that must kill it
    defect: str  # one line: what is wrong
    install: Callable[[Hit], Any]
    only_model: str | None = None  # breaks cells of this model alone
    only_topology: str | None = None
    only_algorithm: str | None = None

    def breaks(self, axes: Mapping[str, str]) -> bool:
        """Whether it breaks the cell with these values on its axes."""
        only = {"model": self.only_model, "topology": self.only_topology, "algorithm": self.only_algorithm}
        return all(value in (None, axes[axis]) for axis, value in only.items())


def hit_counter(path: Path) -> Hit:
    """Return a function that appends one byte to `path`, at most `_HITS_PER_PROCESS` times in this process."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    count = 0

    def hit() -> None:
        nonlocal count
        if count < _HITS_PER_PROCESS:
            count += 1
            os.write(fd, b".")

    return hit
