"""The first forward pass of a batch of requests: equal prompts with equal images are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from reference_trainer.data.images import Image
from reference_trainer.models.inputs import Positions, prompt_inputs
from reference_trainer.rollout.engine import SamplingRequest


class Prefill(NamedTuple):
    """What the model is given for D distinct prompts, and how B requests share them."""

    inputs: dict[str, Any]
    """Keyword arguments for the distinct prompts."""
    rows: torch.Tensor
    """`(B,)`: each request's place among them."""
    shared: bool
    """Whether two requests have the same place."""
    positions: Positions
    """Where the B responses stand."""


def prefill(model: PreTrainedModel, requests: Sequence[SamplingRequest]) -> Prefill:
    """For prompts of one length. Rows may differ in their images: each has positions of its own, and none is padded."""
    places: dict[tuple[tuple[int, ...], tuple[Image, ...]], int] = {}
    index = [places.setdefault((request.prompt, request.images), len(places)) for request in requests]
    prompts, images = zip(*places, strict=True)
    inputs, positions = prompt_inputs(model, prompts, images, device=model.device)
    rows = torch.tensor(index, device=model.device)
    return Prefill(inputs, rows, len(places) < len(requests), positions.select(rows))
