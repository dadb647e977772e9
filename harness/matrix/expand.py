"""From a suite to its cells: every combination is a cell, or is left out by an exclusion that says why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from harness.errors import RequestError, nearest
from harness.matrix.cell import AXES, Cell
from harness.matrix.load import Catalogue, SuiteFile
from harness.matrix.merge import merged
from harness.matrix.schema import Block, ModelEntry, SuiteLimits
from harness.matrix.yaml_document import Document, Place
from harness.results.records import Exclusion

MAX_CELLS = 20_000  # of one block; more is a slip of the pen


@dataclass(frozen=True, kw_only=True)
class SettingsLayer:
    """Where a part of a cell's settings comes from: what stands under `place` lies under `prefix` in the settings."""

    document: Document
    place: Place
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlacedCell:
    """A cell, the `file:line` that asks for it, and the layers of its settings, the strongest last."""

    cell: Cell
    where: str
    layers: tuple[SettingsLayer, ...] = ()

    def where_setting(self, dotted: str) -> str | None:
        """`file:line` of the setting `algorithm.clip_low`, None when no layer has it."""
        path = tuple(dotted.split("."))
        for layer in reversed(self.layers):
            at = (*layer.place, *path[len(layer.prefix) :])
            if path[: len(layer.prefix)] == layer.prefix and at in layer.document.lines:
                return layer.document.where(at)
        return None


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """A suite, spelt out. Ids are unique; no cell is both in `cells` and in `excluded`."""

    suite: str
    cells: tuple[PlacedCell, ...]
    excluded: tuple[Exclusion, ...]
    limits: SuiteLimits


def expand(suite: SuiteFile, catalogue: Catalogue) -> Expansion:
    """Spell a suite out: included suites first, then its blocks, then its single cells.

    A suite's exclusions and learning rules apply to all of these, and each must match something. Raises RequestError.
    """
    included = [expand(inner, catalogue) for inner in suite.includes]
    own = [placed for kind in ("combine", "cells") for placed in _cells_of(suite, kind, catalogue)]
    asked = _unique([*(placed for inner in included for placed in inner.cells), *own])

    reasons = _exclusions(suite, asked)
    kept = _with_learning(suite, [placed for placed in asked if placed.cell.id not in reasons])
    excluded = {one.cell: one.reason for inner in included for one in inner.excluded} | reasons
    ids = {placed.cell.id for placed in kept}
    return Expansion(
        suite=suite.spec.suite,
        cells=tuple(kept),
        excluded=tuple(Exclusion(cell=cell, reason=why) for cell, why in excluded.items() if cell not in ids),
        limits=suite.spec.limits,
    )


def _cells_of(suite: SuiteFile, kind: str, catalogue: Catalogue) -> Iterable[PlacedCell]:
    for index, block in enumerate(getattr(suite.spec, kind)):
        place: Place = (kind, index)
        axes = [_values(suite, block, axis, place) for axis in AXES]
        _refuse_unknown(suite, catalogue, dict(zip(AXES, axes, strict=True)), place)
        if kind == "cells" and prod(map(len, axes)) > 1:
            raise RequestError(
                f'{suite.document.where(place)}: an entry of "cells" is one cell; move lists of values to "combine"'
            )
        if prod(map(len, axes)) > MAX_CELLS:
            raise RequestError(f"{suite.document.where(place)}: combines to more than {MAX_CELLS} cells; split it up")
        for point in product(*axes):
            yield _cell(suite, block, dict(zip(AXES, point, strict=True)), catalogue=catalogue, place=place)


def _values(suite: SuiteFile, block: Block, axis: str, place: Place) -> tuple[str, ...]:
    own: tuple[str, ...] | None = getattr(block, axis)
    if own is not None:
        return tuple(dict.fromkeys(own))
    default: str | None = getattr(suite.spec.defaults, axis)
    if default is None:
        raise RequestError(f'{suite.document.where(place)}: names no {axis}; add "{axis}" here or under "defaults"')
    return (default,)


def _refuse_unknown(suite: SuiteFile, catalogue: Catalogue, axes: Mapping[str, Sequence[str]], place: Place) -> None:
    for axis, known in names_of(catalogue).items():
        for index, value in enumerate(axes[axis]):
            if value not in known:
                at = (*place, axis, index) if getattr(_block_at(suite, place), axis) else ("defaults", axis)
                raise RequestError(f'{suite.document.where(at)}: unknown {axis} "{value}"; {nearest(value, known)}')


def _block_at(suite: SuiteFile, place: Place) -> Block:
    block: Block = getattr(suite.spec, str(place[0]))[place[1]]
    return block


def names_of(catalogue: Catalogue) -> dict[str, Mapping[str, Any]]:
    """Entries by name of the axes that have a catalogue."""
    return {"hardware": catalogue.hardware, "model": catalogue.models, "algorithm": catalogue.algorithms}


def _cell(suite: SuiteFile, block: Block, point: dict[str, Any], *, catalogue: Catalogue, place: Place) -> PlacedCell:
    defaults, where = suite.spec.defaults, suite.document.where(place)
    size = block.size or defaults.size
    sizes = catalogue.models[point["model"]].sizes
    if size not in sizes:
        raise RequestError(f'{where}: model "{point["model"]}" has no size "{size}"; {nearest(size, sizes)}')
    model, algorithm = catalogue.models[point["model"]], catalogue.algorithms[point["algorithm"]]
    cell = Cell(
        subject=block.subject or defaults.subject,
        **point,
        size=size,
        dtype=block.dtype or defaults.dtype,
        settings=merged(
            defaults.settings, {"model": model.sizes[size]}, model.settings, algorithm.settings, block.settings
        ),
    )
    documents = catalogue.documents
    layers = (
        SettingsLayer(document=suite.document, place=("defaults", "settings")),
        *model_layers(cell, model, documents["models"]),
        SettingsLayer(document=documents["algorithms"], place=(cell.algorithm, "settings")),
        SettingsLayer(document=suite.document, place=(*place, "settings")),
    )
    return PlacedCell(cell=replace(cell, devices=cell.dp), where=where, layers=layers)


def model_layers(cell: Cell, model: ModelEntry, document: Document) -> tuple[SettingsLayer, ...]:
    """Where the settings stand that a cell has from its model."""
    own = SettingsLayer(document=document, place=(cell.model, "settings"))
    if model.extends is None:
        return (SettingsLayer(document=document, place=(cell.model, "sizes", cell.size), prefix=("model",)), own)
    sizes: Place = (model.extends, "sizes", cell.size)
    return (
        SettingsLayer(document=document, place=sizes, prefix=("model",)),
        SettingsLayer(document=document, place=(model.extends, "settings")),
        own,
    )


def _unique(asked: Iterable[PlacedCell]) -> list[PlacedCell]:
    """The same cell asked for twice is one cell; two different cells under one id are a mistake."""
    by_id: dict[str, PlacedCell] = {}
    for placed in asked:
        first = by_id.setdefault(placed.cell.id, placed)
        if replace(first.cell, learn=None) != replace(placed.cell, learn=None):
            raise RequestError(
                f"{placed.where}: cell {placed.cell.id} is asked for at {first.where} with other settings; keep one"
            )
    return list(by_id.values())


def _exclusions(suite: SuiteFile, asked: Sequence[PlacedCell]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for index, rule in enumerate(suite.spec.exclude):
        for placed in _matching(suite, rule.match, asked, place=("exclude", index)):
            reasons.setdefault(placed.cell.id, rule.reason)
    return reasons


def _with_learning(suite: SuiteFile, kept: Sequence[PlacedCell]) -> list[PlacedCell]:
    learning: dict[str, dict[str, Any]] = {}
    for index, rule in enumerate(suite.spec.learn):
        for placed in _matching(suite, rule.match, kept, place=("learn", index)):
            if placed.cell.id in learning:
                where = suite.document.where(("learn", index))
                raise RequestError(f"{where}: cell {placed.cell.id} has a learning rule already; keep one")
            learning[placed.cell.id] = rule.model_dump(mode="json", exclude={"match"})
    return [
        replace(placed, cell=replace(placed.cell, learn=learning.get(placed.cell.id, placed.cell.learn)))
        for placed in kept
    ]


def _matching(
    suite: SuiteFile, match: Mapping[str, Sequence[str]], cells: Sequence[PlacedCell], *, place: Place
) -> list[PlacedCell]:
    """Cells that a rule matches. A rule, or a value in it, that matches nothing is stale, and an error."""
    found = [placed for placed in cells if all(getattr(placed.cell, axis) in match[axis] for axis in match)]
    for axis, values in match.items():
        for index, value in enumerate(values):
            if not any(getattr(placed.cell, axis) == value for placed in found):
                where = suite.document.where((*place, "match", axis, index))
                present = {getattr(placed.cell, axis) for placed in cells}
                remedy = "remove or correct it" if value in present else nearest(value, present)
                raise RequestError(f'{where}: {axis} "{value}" matches no cell in this rule of "{place[0]}"; {remedy}')
    return found
