"""Cases of the trainer's mathematics: every pure function against its oracle, every mini-batch against its splits."""

from __future__ import annotations

from harness.cases.base import Case
from harness.subjects.protocol import Capability


class SplitInvariant(Case):
    """Loss, metrics and gradients do not depend on how a mini-batch is split into micro-batches."""

    id = "loss.split-invariant"
    origin = "verl#6957, verl#7225, verl#6836, verl#6464"
    axes = ("model", "algorithm")
    needs = frozenset({Capability.UPDATE})


class MatchesOracle(Case):
    """Every function equals a float64 oracle written from the paper's formula."""

    id = "loss.matches-oracle"
    origin = "trl#6807"
    axes = ()
    needs = frozenset({Capability.FUNCTIONS})


CASES: tuple[Case, ...] = (SplitInvariant(), MatchesOracle())
