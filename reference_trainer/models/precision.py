"""Which of a model's numbers are in the configured dtype."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def cast_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Bring parameters and persistent buffers to a dtype, in place. Tied weights stay tied.

    What the class computes and never saves (rotary frequencies, the scale of embeddings) is float32 whatever the
    dtype: bfloat16 would turn positions by the wrong angle, and a model that was loaded must compute what the one that
    was built computes.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    saved = module.state_dict()
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype if name in saved else torch.float32)
