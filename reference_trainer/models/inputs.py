"""What a model's forward pass is given for laid-out rows."""

from __future__ import annotations

from typing import Any

from torch import nn

from reference_trainer.data.layout import RowBatch


def model_inputs(backbone: nn.Module, batch: RowBatch) -> dict[str, Any]:
    """Keyword arguments of the model's forward pass."""
    return {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
    }
