"""What would run, cell by cell and case by case, and why the rest would not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cases.base import Case
from harness.errors import RequestError
from harness.hardware.probe import Finding, Probe, probe_platform
from harness.matrix.cell import AXES, Cell
from harness.matrix.expand import Expansion, PlacedCell, expand
from harness.matrix.load import MATRICES, Catalogue, load_catalogue, load_suite
from harness.matrix.schema import SuiteLimits
from harness.matrix.selection import Selection, select_cases, select_cells
from harness.results.records import Exclusion, PlannedCase, PlannedCell
from harness.results.vocabulary import PlanState
from harness.subjects import registry as subjects


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The selected cells in the suite's order. `by_id` holds what a worker needs to build each of them."""

    suite: str
    asked: str  # the suite as it was asked for, by name or path: what a command line repeats
    cells: tuple[PlannedCell, ...]
    by_id: Mapping[str, Cell]
    excluded: tuple[Exclusion, ...]
    limits: SuiteLimits

    @property
    def runnable(self) -> tuple[PlannedCell, ...]:
        """Cells that this machine can give evidence for."""
        return tuple(cell for cell in self.cells if cell.evidence is not None)


def make_plan(
    suite: str,
    selection: Selection,
    *,
    cases: Mapping[str, Case],
    folder: Path = MATRICES,
    probe: Probe = probe_platform,
) -> Plan:
    """Plan a suite on this machine. Raises RequestError, or NothingMeasuredError when the selection is empty."""
    catalogue = load_catalogue(folder)
    expansion = expand(load_suite(suite, folder), catalogue)
    findings = _findings(expansion, catalogue, probe)
    chosen = select_cells(expansion, selection, catalogue)
    chosen_cases = {case: cases[case] for case in select_cases(cases, selection.cases)}
    return Plan(
        suite=expansion.suite,
        asked=suite,
        cells=_planned(chosen, chosen_cases, findings),
        by_id={placed.cell.id: placed.cell for placed in chosen},
        excluded=expansion.excluded,
        limits=expansion.limits,
    )


def _findings(expansion: Expansion, catalogue: Catalogue, probe: Probe) -> dict[str, Finding]:
    """Evidence by hardware name. Raises RequestError when there is a cell that no machine could run."""
    findings: dict[str, Finding] = {}
    for placed in expansion.cells:
        cell, where = placed.cell, placed.where
        entry = catalogue.hardware[cell.hardware]
        if cell.hardware not in findings:
            try:
                findings[cell.hardware] = probe(entry.platform)
            except RequestError as error:
                at = catalogue.documents["hardware"].where((cell.hardware, "platform"))
                raise RequestError(f"{at}: {error}; nothing can run cell {cell.id} of {where}") from None
        if cell.devices > entry.devices_per_node:
            raise RequestError(
                f'{where}: nothing can run cell {cell.id}: it needs {cell.devices} devices and "{cell.hardware}" has '
                f"{entry.devices_per_node} in a machine; choose a smaller topology or exclude it with a reason"
            )
        try:
            subjects.validate_settings(cell)
        except RequestError as error:
            said = str(error).removeprefix(f"cell {cell.id}: ")
            raise RequestError(f"{where_named(placed, said)}: nothing can run cell {cell.id}: {said}") from None
    return findings


def where_named(placed: PlacedCell, sentence: str) -> str:
    """`file:line` of the first setting that the subject's sentence names; of the cell when it names none."""
    named = (placed.where_setting(word) for word in re.findall(r'\w+(?:\.\w+)+|(?<=")\w+(?=")', sentence))
    return next((where for where in named if where is not None), placed.where)


def _planned(
    chosen: Sequence[PlacedCell], cases: Mapping[str, Case], findings: Mapping[str, Finding]
) -> tuple[PlannedCell, ...]:
    owners: dict[tuple[str, ...], str] = {}  # by case and what it reads of a cell: the cell that runs it
    planned = []
    for placed in chosen:
        cell, finding = placed.cell, findings[placed.cell.hardware]
        can_run = finding.evidence is not None
        planned.append(
            PlannedCell(
                cell=cell.id,
                subject=cell.subject,
                axes={axis: getattr(cell, axis) for axis in AXES},
                size=cell.size,
                dtype=cell.dtype,
                devices=cell.devices,
                evidence=finding.evidence,
                reason=finding.reason,
                cases=tuple(_planned_case(case, cell, owners) for case in cases.values()) if can_run else (),
            )
        )
    return tuple(planned)


def _planned_case(case: Case, cell: Cell, owners: dict[tuple[str, ...], str]) -> PlannedCase:
    missing = case.needs - subjects.capabilities(cell.subject)
    reason = f"{cell.subject} does not offer {', '.join(sorted(missing))}" if missing else case.applies(cell)
    if reason:
        return PlannedCase(case=case.id, state=PlanState.NOT_APPLICABLE, reason=reason)
    covered = [case.axes] if case.cover == "cross" else [(axis,) for axis in case.axes]
    keys = [(case.id, *axes, *cell.projection(axes)) for axes in covered]
    if any(key not in owners for key in keys):
        for key in keys:
            owners.setdefault(key, cell.id)
        return PlannedCase(case=case.id, state=PlanState.RUN)
    runners = list(dict.fromkeys(owners[key] for key in keys))
    return PlannedCase(
        case=case.id,
        state=PlanState.SHARED,
        reason=f"runs in {' and '.join(runners)}",
        shared_with=runners[0],
        also_shared_with=tuple(runners[1:]),
    )
