"""What a model with a vision tower is given for images. Its two layouts are told apart by the arguments that it takes.

Pixels: bytes / 255, centred and scaled to [-1, 1]. A model that is given `image_position_ids` does the second part
itself (Gemma 4); one that is given `image_grid_thw` is given the result (Qwen3.5: mean and deviation 0.5).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig

from reference_trainer.data.image_tokens import ImageTokens
from reference_trainer.data.images import Image

_START = ("vision_start_token_id", "boi_token_id")
_END = ("vision_end_token_id", "eoi_token_id")
_PLACEHOLDERS = ("image_token_id", "video_token_id", "audio_token_id")


def image_tokens(config: PreTrainedConfig) -> ImageTokens | None:
    """What stands for an image in this model's rows; None for a model of text alone."""
    vision = getattr(config, "vision_config", None)
    placeholder = getattr(config, "image_token_id", None)
    if vision is None or placeholder is None:
        return None
    merged = _merged(vision)
    table = getattr(vision, "position_embedding_size", None)
    return ImageTokens(
        placeholder_id=placeholder,
        start_id=_first(config, _START),
        end_id=_first(config, _END),
        side=vision.patch_size * merged,
        most_features=None if table is None else table // merged,
    )


def placeholder_ids(config: PreTrainedConfig) -> tuple[int, ...]:
    """Ids within the vocabulary that stand for features of any medium, and so are never a word of a response."""
    vocabulary = config.get_text_config().vocab_size
    found = {getattr(config, name, None) for name in _PLACEHOLDERS}
    return tuple(sorted(token for token in found if token is not None and token < vocabulary))


def has_position_axes(model: nn.Module) -> bool:
    """Whether positions have axes of their own within an image, so that they are not the number of tokens so far."""
    return hasattr(model, "get_rope_index") or hasattr(getattr(model, "model", model), "get_rope_index")


def tower_inputs(model: nn.Module, images: Sequence[Image], *, device: torch.device) -> dict[str, torch.Tensor]:
    """Keyword arguments that bring the images, at least one, to the tower in their order."""
    config: Any = model.config
    vision = config.vision_config
    takes = inspect.signature(model.forward).parameters
    if "image_grid_thw" in takes:
        patches = [
            framed_patches(image, patch=vision.patch_size, merged=_merged(vision), frames=vision.temporal_patch_size)
            for image in images
        ]
        grids = [(1, image.height // vision.patch_size, image.width // vision.patch_size) for image in images]
        return {
            "pixel_values": torch.from_numpy(np.concatenate(patches)).to(device),
            "image_grid_thw": torch.tensor(grids, dtype=torch.int64, device=device),
        }
    if "image_position_ids" in takes:
        pixels, places = padded_patches(images, patch=vision.patch_size)
        return {
            "pixel_values": torch.from_numpy(pixels).to(device),
            "image_position_ids": torch.from_numpy(places).to(device),
        }
    raise ValueError(
        f"{type(model).__name__} takes neither image_grid_thw nor image_position_ids; it can't be given images"
    )


def framed_patches(image: Image, *, patch: int, merged: int, frames: int) -> np.ndarray:
    """`(patches, 3 · frames · patch²)` float32 in [-1, 1]: the still image is repeated for each frame of a patch.

    Patches that are merged to one feature follow each other: blocks row by row, and within a block row by row.
    """
    pixels = (image.array.astype(np.float32) / 255 - 0.5) / 0.5
    down, across = image.height // (patch * merged), image.width // (patch * merged)
    split = pixels.reshape(down, merged, patch, across, merged, patch, 3)
    ordered = split.transpose(0, 3, 1, 4, 6, 2, 5)  # block row, block column, row, column, channel, y, x
    repeated = np.repeat(ordered[:, :, :, :, :, None], frames, axis=5)
    return repeated.reshape(down * across * merged**2, 3 * frames * patch**2)


def padded_patches(images: Sequence[Image], *, patch: int) -> tuple[np.ndarray, np.ndarray]:
    """`(images, P, 3 · patch²)` float32 in [0, 1] and `(images, P, 2)` int64 of x and y, with P the most patches.

    Patches go row by row; within one, channels go last. What pads an image is 0 and lies at (-1, -1).
    """
    counts = [(image.height // patch) * (image.width // patch) for image in images]
    pixels = np.zeros((len(images), max(counts), 3 * patch**2), dtype=np.float32)
    places = np.full((len(images), max(counts), 2), -1, dtype=np.int64)
    for number, (image, count) in enumerate(zip(images, counts, strict=True)):
        down, across = image.height // patch, image.width // patch
        split = image.array.reshape(down, patch, across, patch, 3).transpose(0, 2, 1, 3, 4)
        pixels[number, :count] = split.reshape(count, -1).astype(np.float32) / 255
        y, x = np.divmod(np.arange(count), across)
        places[number, :count] = np.stack([x, y], axis=-1)
    return pixels, places


def _merged(vision: Any) -> int:
    """Patches, down and across, of one feature."""
    return getattr(vision, "spatial_merge_size", None) or vision.pooling_kernel_size


def _first(config: PreTrainedConfig, names: tuple[str, ...]) -> int | None:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)
