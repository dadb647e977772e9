"""What a person asks for of a suite: some of its cells, some of the cases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from harness.errors import NothingMeasuredError, RequestError, nearest
from harness.matrix.cell import AXES
from harness.matrix.expand import Expansion, PlacedCell, names_of
from harness.matrix.load import Catalogue
from harness.matrix.schema import ENGINES, MODES


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Names on each axis, and globs over ids. Nothing named means everything; names on two axes must both hold."""

    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cells: Sequence[str] = ()
    cases: Sequence[str] = ()

    def __str__(self) -> str:
        """As it would stand on the command line."""
        named = [(axis, value) for axis in AXES for value in self.axes.get(axis, ())]
        globs = [("cell", glob) for glob in self.cells] + [("case", glob) for glob in self.cases]
        return " ".join(f"--{option} {value}" for option, value in named + globs)


def select_cells(expansion: Expansion, selection: Selection, catalogue: Catalogue) -> tuple[PlacedCell, ...]:
    """Cells of the suite that the selection names, in the suite's order.

    Raises RequestError for a name that does not exist, NothingMeasuredError when names exist and no cell is left.
    """
    _refuse_unknown_values(selection, catalogue)
    ids = [placed.cell.id for placed in expansion.cells]
    excluded = {one.cell: one.reason for one in expansion.excluded}
    for glob in selection.cells:
        if glob in excluded:
            raise NothingMeasuredError(f"suite {expansion.suite} leaves cell {glob} out: {excluded[glob]}")
        _refuse_unknown_id("cell", glob, ids)
    chosen = tuple(
        placed
        for placed in expansion.cells
        if all(getattr(placed.cell, axis) in values for axis, values in selection.axes.items() if values)
        and _any_glob(placed.cell.id, selection.cells)
    )
    if not chosen:
        asked = str(selection)
        what = f"has no cell for {asked}" if asked else "has no cells"
        raise NothingMeasuredError(f"suite {expansion.suite} {what}; `rl-gauntlet plan` lists the cells of a suite")
    return chosen


def select_cases(known: Iterable[str], globs: Sequence[str]) -> tuple[str, ...]:
    """Ids of cases that match any of the globs, in their own order; all of them without globs."""
    ids = tuple(known)
    for glob in globs:
        _refuse_unknown_id("case", glob, ids)
    chosen = tuple(case for case in ids if _any_glob(case, globs))
    if not chosen:
        raise NothingMeasuredError(f"no case matches {' or '.join(globs)}; `rl-gauntlet plan` lists the cases")
    return chosen


def _any_glob(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _refuse_unknown_id(what: str, glob: str, known: Sequence[str]) -> None:
    """A pattern may match nothing; a name without wildcards must exist."""
    if not any(sign in glob for sign in "*?[") and glob not in known:
        raise RequestError(f'unknown {what} "{glob}"; {nearest(glob, known)}')


def _refuse_unknown_values(selection: Selection, catalogue: Catalogue) -> None:
    known = {**names_of(catalogue), "mode": MODES, "engine": ENGINES}
    for axis, values in selection.axes.items():
        for value in values:
            if axis in known and value not in known[axis]:
                raise RequestError(f'unknown {axis} "{value}"; {nearest(value, known[axis])}')
            if axis == "topology" and not re.fullmatch(r"dp[1-9][0-9]*", value):
                raise RequestError(f'unknown topology "{value}"; write dp1, dp2, …')
