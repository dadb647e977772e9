"""Rows with images, for tests."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.data.image_tasks import render
from reference_trainer.data.images import Image
from reference_trainer.data.layout import Row
from reference_trainer.models.build import build_policy
from reference_trainer.models.media import image_tokens
from tests.reference_trainer.tiny import MODELS

# The second Gemma lets the features of an image see each other in its windowed layers, as the larger published ones do.
SEEING = ("qwen3.5-vl", "gemma4-vl", "gemma4-vl, both ways")


def model_config(name: str) -> ModelConfig:
    """Weights wide enough that the next token depends on the image."""
    spec: dict[str, Any] = copy.deepcopy(MODELS[name.removesuffix(", both ways")])
    if name.endswith("both ways"):
        spec["config"]["text_config"]["use_bidirectional_attention"] = "vision"
    return ModelConfig(**{**spec, "init_std": 0.3})


def policy(name: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return build_policy(model_config(name), seed=0, dtype=dtype)


def image(height: int = 16, width: int = 16, seed: int = 0) -> Image:
    return render(height, width, 1, random.Random(seed))


def prompt(model: PreTrainedModel, *segments: Image | tuple[int, ...]) -> tuple[int, ...]:
    """Ids of a prompt: texts as they are, images as what stands for them."""
    tokens = image_tokens(model.config)
    assert tokens is not None
    return tuple(token for part in segments for token in (tokens.expand(part) if isinstance(part, Image) else part))


def row(model: PreTrainedModel, *segments: Image | tuple[int, ...], response: tuple[int, ...] = (50, 51, 52)) -> Row:
    images = tuple(part for part in segments if isinstance(part, Image))
    return Row(prompt(model, *segments), response, images)


def mixed_rows(model: PreTrainedModel) -> list[Row]:
    """Zero to three images a row, of different shapes, at the front, in the middle, at the end and side by side."""
    return [
        row(model, image(), (3, 4, 5)),
        row(model, (6, 7, 8, 9), response=(60, 61, 62, 63, 64)),
        row(model, (10, 11), image(16, 24, seed=1), (12,), image(24, 8, seed=2), response=(70,)),
        row(model, (13,), image(8, 8, seed=3), image(8, 32, seed=4), (14, 15), image(32, 16, seed=5)),
        row(model, (16, 17), image(8, 16, seed=6), response=()),
    ]
