"""A cell: one subject on one hardware, model, algorithm, mode, engine and topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AXES = ("hardware", "model", "algorithm", "mode", "engine", "topology")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A point of the matrix, with all a worker needs to build it: plain data, so that it travels to another process.

    `settings` is what the subject is built from (a mapping of plain values that the subject itself validates);
    `learn` is None, or how the cell must show that it learns (`LearnSpec` as plain data).
    """

    subject: str
    hardware: str
    model: str
    algorithm: str
    mode: str
    engine: str
    topology: str
    size: str = "tiny"
    dtype: str = "float32"
    devices: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    learn: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        """`cpu/qwen3/grpo/sync/native/dp1`; another subject than the reference stands in front, `verl:cpu/…`."""
        path = "/".join(getattr(self, axis) for axis in AXES)
        return path if self.subject == "reference" else f"{self.subject}:{path}"

    @property
    def dp(self) -> int:
        """Number of data-parallel rollout replicas that the topology `dpN` names."""
        return int(self.topology.removeprefix("dp"))

    def projection(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The cell as a case sees it that reads only `axes`: cells with equal projections share one run of the case."""
        unknown = set(axes) - set(AXES)
        if unknown:
            raise ValueError(f"unknown axes {sorted(unknown)}; a case reads some of {AXES}")
        return (self.subject, self.size, self.dtype, *(getattr(self, axis) for axis in AXES if axis in axes))
