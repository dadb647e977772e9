"""End-to-end cases: a cell trains for real, repeats itself bit for bit, and learns where it says so."""

from __future__ import annotations

from harness.cases.base import Case
from harness.matrix.cell import AXES, Cell
from harness.results.vocabulary import FailureClass
from harness.subjects.protocol import Capability


class Trains(Case):
    """Several real steps of the whole loop: finite metrics, moved parameters, weights served as announced."""

    id = "cell.trains"
    origin = "verl#6668"
    axes = AXES
    needs = frozenset({Capability.TRAINING})
    examples = 1
    seconds = 180.0


class RepeatsBitEqual(Case):
    """Two runs from one seed on the same threads end in the same bits."""

    id = "cell.repeats-bit-equal"
    origin = "verl#7037"
    axes = AXES
    needs = frozenset({Capability.TRAINING})
    failure_class = FailureClass.NUMERICS_DRIFT
    examples = 1
    seconds = 180.0


class Learns(Case):
    """Greedy reward on held-out prompts rises, by a one-sided test over several seeds."""

    id = "cell.learns"
    origin = "NeMo-RL#1996"
    axes = AXES
    needs = frozenset({Capability.TRAINING})
    examples = 1
    seconds = 600.0

    def applies(self, cell: Cell) -> str:
        return "" if cell.learn is not None else "the cell does not say that it must learn"


CASES: tuple[Case, ...] = (Trains(), RepeatsBitEqual(), Learns())
