"""The options by which every command that takes a suite selects a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.matrix.load import MATRICES
from harness.matrix.selection import Selection

_MATRICES_HELP = "Folder of hardware.yaml, models.yaml, algorithms.yaml and the suites."
_WHICH = "Only these; may be given several times."
_GLOB = "Only ids that match; may be given several times."

SuiteArgument = Annotated[
    str, typer.Argument(metavar="SUITE", help="A suite's name, or the path of a suite's YAML file.")
]
MatricesOption = Annotated[
    Path,
    typer.Option(
        "--matrices", metavar="FOLDER", envvar="RL_GAUNTLET_MATRICES", help=_MATRICES_HELP, show_default=False
    ),
]
HardwareOption = Annotated[list[str] | None, typer.Option("--hardware", metavar="NAME", help=_WHICH)]
ModelOption = Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help=_WHICH)]
AlgorithmOption = Annotated[list[str] | None, typer.Option("--algorithm", metavar="NAME", help=_WHICH)]
ModeOption = Annotated[list[str] | None, typer.Option("--mode", metavar="NAME", help=_WHICH)]
EngineOption = Annotated[list[str] | None, typer.Option("--engine", metavar="NAME", help=_WHICH)]
TopologyOption = Annotated[list[str] | None, typer.Option("--topology", metavar="NAME", help=_WHICH)]
CellOption = Annotated[list[str] | None, typer.Option("--cell", metavar="GLOB", help=_GLOB)]
CaseOption = Annotated[list[str] | None, typer.Option("--case", metavar="GLOB", help=_GLOB)]

DEFAULT_MATRICES = MATRICES


def selection_of(
    *,
    hardware: Sequence[str] | None = None,
    model: Sequence[str] | None = None,
    algorithm: Sequence[str] | None = None,
    mode: Sequence[str] | None = None,
    engine: Sequence[str] | None = None,
    topology: Sequence[str] | None = None,
    cell: Sequence[str] | None = None,
    case: Sequence[str] | None = None,
) -> Selection:
    """The selection that a command's options spell out."""
    axes = {
        "hardware": hardware,
        "model": model,
        "algorithm": algorithm,
        "mode": mode,
        "engine": engine,
        "topology": topology,
    }
    return Selection(
        axes={axis: tuple(values or ()) for axis, values in axes.items()},
        cells=tuple(cell or ()),
        cases=tuple(case or ()),
    )
