"""Defects that the cases of harness/cases/rollout.py must catch."""

from __future__ import annotations

from harness.mutants.base import Mutant

MUTANTS: tuple[Mutant, ...] = ()
