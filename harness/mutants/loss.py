"""Defects that the cases of harness/cases/loss.py must catch."""

from __future__ import annotations

from harness.mutants.base import Mutant

MUTANTS: tuple[Mutant, ...] = ()
