"""Which subjects there are, what each can answer and how one is built. Free of torch until one is built."""

from __future__ import annotations

from pathlib import Path

from harness.errors import RequestError, nearest
from harness.matrix.cell import Cell
from harness.subjects.protocol import Capability, Subject

_CAPABILITIES: dict[str, frozenset[Capability]] = {"reference": frozenset(Capability)}


def capabilities(subject_name: str) -> frozenset[Capability]:
    """Groups of methods that a subject answers. Raises RequestError when there is no such subject."""
    if subject_name not in _CAPABILITIES:
        raise RequestError(f'there is no subject "{subject_name}"; {nearest(subject_name, _CAPABILITIES)}')
    return _CAPABILITIES[subject_name]


def validate_settings(cell: Cell) -> None:
    """Raise RequestError when the cell's subject could not be built from the cell's settings."""
    capabilities(cell.subject)
    from harness.subjects.reference_settings import validate

    validate(cell)


def build_subject(cell: Cell, *, mutant: str | None = None, hits_path: Path | None = None, threads: int = 1) -> Subject:
    """Build the cell's subject in this process, on `threads` threads, with `mutant` active in all its processes.

    `hits_path` is the file to which every process appends a byte each time the mutant's code runs.
    """
    capabilities(cell.subject)
    from harness.subjects.reference import ReferenceSubject

    return ReferenceSubject(cell, mutant=mutant, hits_path=hits_path, threads=threads)
