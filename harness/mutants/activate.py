"""Carries a mutant into a process by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RequestError, nearest
from harness.mutants.base import hit_counter
from harness.mutants.patching import inert
from harness.mutants.registry import all_mutants


@dataclass(frozen=True, kw_only=True)
class Activation:
    """Called once in each process of a cell, before the trainer is built there. Picklable: only names travel.

    In a cell that the mutant does not break, its code is counted and the sound code runs.
    """

    name: str
    hits_path: str
    axes: Mapping[str, str]
    """The cell's."""

    def __call__(self) -> None:
        """Raises RequestError when there is no such mutant."""
        mutants = all_mutants()
        if self.name not in mutants:
            raise RequestError(f'there is no mutant "{self.name}"; {nearest(self.name, mutants)}')
        mutant = mutants[self.name]
        hit = hit_counter(Path(self.hits_path))
        if mutant.breaks(self.axes):
            mutant.install(hit)
            return
        with inert(hit):
            mutant.install(hit)
