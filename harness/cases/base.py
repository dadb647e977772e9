"""What a case is: a property, the inputs it ranges over, and the cells it applies to.

Inputs are plain JSON data (a mapping): the shrunk one goes into the record and comes back on a command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hypothesis import strategies as st

from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.subjects.protocol import Capability, Subject


class Violation(AssertionError):
    """The case's own assertion failed. Nothing else counts as a kill."""

    def __init__(self, message: str, *, failure_class: FailureClass | None = None) -> None:
        super().__init__(message)
        self.failure_class = failure_class  # None: the case's declared class


def require(condition: bool, message: str, *, failure_class: FailureClass | None = None) -> None:
    """Assert on behalf of a case."""
    if not condition:
        raise Violation(message, failure_class=failure_class)


def require_finite(value: float, what: str) -> None:
    """Assert that a number is neither NaN nor infinite."""
    require(math.isfinite(value), f"{what} is {value}", failure_class=FailureClass.NUMERICS_NAN)


@dataclass
class Context:
    """What a case may use while it judges one input."""

    cell: Cell
    subject: Subject
    seed: int
    on_step: Callable[[int, int, Mapping[str, float | None]], None] = lambda seed, step, metrics: None
    metrics: dict[str, float | None] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    progress: Callable[[], None] = lambda: None  # tells the watchdog that something moved


class Case:
    """One property. A subclass is stateless; its docstring tells a maintainer what to look for when it fails."""

    id: ClassVar[str]
    origin: ClassVar[str]  # the public change or report it comes from
    axes: ClassVar[tuple[str, ...]]  # axes of the cell that it reads
    # cross: it runs for every combination of their values; each: once for every value of each of them, for a property
    # in which one axis has no hold on another
    cover: ClassVar[Literal["cross", "each"]] = "cross"
    needs: ClassVar[frozenset[Capability]]
    failure_class: ClassVar[FailureClass] = FailureClass.CONTRACT
    other_classes: ClassVar[frozenset[FailureClass]] = frozenset()  # that its assertions may name instead
    examples: ClassVar[int] = 50  # 1 for a case with one input
    seconds: ClassVar[float] = 60.0  # time-out, for the whole case

    def applies(self, cell: Cell) -> str:
        """Empty when the case applies, else the reason why it does not."""
        return ""

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        """JSON-able mappings to judge."""
        return st.just({})

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        """Judge one input; raise `Violation` (through `require`) when the property does not hold."""
        raise NotImplementedError
