"""Defects that the cases of harness/cases/training.py must catch."""

from __future__ import annotations

from harness.mutants.base import Mutant

MUTANTS: tuple[Mutant, ...] = ()
