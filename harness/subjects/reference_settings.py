"""What a cell means to the reference trainer. Does not import torch: planning validates cells with it."""

from __future__ import annotations

from harness.errors import RequestError
from harness.matrix.cell import Cell
from reference_trainer.config import ConfigError, TrainerConfig, load_config

FORECAST_ONLY = "full"


def trainer_config(cell: Cell, *, seed: int = 0, **overrides: object) -> TrainerConfig:
    """The cell's settings and axes as the trainer's configuration. Raises RequestError where they do not fit."""
    if cell.size == FORECAST_ONLY:
        raise RequestError(
            f'cell {cell.id}: size "{cell.size}" is for forecasts and is never run; name its family in "tiny" or '
            '"shapes"'
        )
    axes = {"mode": cell.mode, "engine": cell.engine, "dp": cell.dp, "dtype": cell.dtype, "seed": seed}
    try:
        return load_config({**cell.settings, **axes, **overrides})
    except ConfigError as error:
        raise RequestError(f"cell {cell.id}: {error}") from None


def validate(cell: Cell) -> None:
    """Raise RequestError when the trainer could not be built for the cell."""
    trainer_config(cell)
