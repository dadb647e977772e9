"""What a model's forward pass is given: for laid-out rows, for prompts, and for the tokens that follow them.

Positions along an image (M-RoPE) are computed here, row by row, and always passed. A model that is left to itself
remembers an offset from one call to the next, which is another batch's offset as soon as calls interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from reference_trainer.data.image_tokens import ImageTokens
from reference_trainer.data.images import Image
from reference_trainer.data.layout import RowBatch
from reference_trainer.models.capabilities import vision_tower
from reference_trainer.models.media import has_position_axes, image_tokens, tower_inputs


def model_inputs(backbone: nn.Module, batch: RowBatch) -> dict[str, Any]:
    """Keyword arguments of the model's forward pass; without images they are a text model's.

    Raises ValueError, naming the row, for images that the model does not take and for placeholders that are not
    exactly as many as the features of the row's images.
    """
    inputs = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
    }
    images = batch.images or ((),) * len(batch.input_ids)
    return inputs | _image_inputs(backbone, batch.input_ids, batch.attention_mask, batch.position_ids, images)


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Where the tokens behind a batch of prompts stand, when the model isn't left to count them."""

    first: torch.Tensor | None
    """`(B,)` position of the first token behind each prompt; None leaves the counting to the model."""
    axes: int = 0
    """Axes of a position: 0 for a plain number, 3 for time, height and width, which agree outside of images."""

    def inputs(self, start: int, count: int = 1) -> dict[str, torch.Tensor]:
        """Keyword arguments for the tokens `start` to `start + count - 1` behind the prompts."""
        if self.first is None:
            return {}
        ids = self.first[:, None] + torch.arange(start, start + count, device=self.first.device)  # (B, count)
        return {"position_ids": ids.expand(self.axes, *ids.shape) if self.axes else ids}

    def select(self, rows: torch.Tensor) -> Positions:
        """Those of these rows `(N,)`, which may repeat."""
        return Positions(first=None if self.first is None else self.first[rows], axes=self.axes)


def prompt_inputs(
    model: nn.Module, prompts: Sequence[Sequence[int]], images: Sequence[tuple[Image, ...]], *, device: torch.device
) -> tuple[dict[str, Any], Positions]:
    """Keyword arguments for prompts of one length, without padding, and where their responses stand.

    Raises ValueError as `model_inputs` does.
    """
    ids = torch.tensor(prompts, dtype=torch.int64, device=device)
    inputs: dict[str, Any] = {"input_ids": ids}
    plain = torch.arange(ids.shape[1], device=device).expand_as(ids)
    inputs |= _image_inputs(model, ids, torch.ones_like(ids), plain, images)
    if not has_position_axes(model):
        return inputs, Positions(first=None)
    positions = inputs.setdefault("position_ids", plain)  # (B, L) or (3, B, L)
    first = positions.amax(dim=(0, 2) if positions.dim() == 3 else 1) + 1
    return inputs, Positions(first=first, axes=3 if positions.dim() == 3 else 0)


def check_images(model: nn.Module, ids: Sequence[int], images: Sequence[Image], *, row: str) -> None:
    """Raise ValueError, naming `row`, for images of a model without a tower and for placeholders of another number."""
    tokens = image_tokens(model.config) if vision_tower(model) is not None else None  # type: ignore[arg-type]
    if tokens is not None:
        tokens.starts(ids, images, row=row)
    elif images:
        raise ValueError(f"{row} has {len(images)} images, but {type(model).__name__} has no vision tower")


def _image_inputs(
    model: nn.Module,
    input_ids: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    images: Sequence[tuple[Image, ...]],
) -> dict[str, Any]:
    """What images add to, or change of, the text's arguments; all tensors `(B, L)`. Nothing when no row has one."""
    flat = [image for row in images for image in row]
    if vision_tower(model) is None:
        for index, found in enumerate(images if flat else ()):
            check_images(model, (), found, row=f"row {index}")
        return {}
    config: Any = model.config
    tokens = image_tokens(config)
    assert tokens is not None
    # The padding token could be a placeholder's id only by a mistake of the tokenizer; it is never counted as one.
    is_image = (input_ids == tokens.placeholder_id) & (mask == 1)
    starts = _starts(is_image, input_ids, images, tokens)
    if not flat:
        return {}
    inputs: dict[str, Any] = tower_inputs(model, flat, device=input_ids.device)
    inputs["mm_token_type_ids"] = is_image.long()
    if has_position_axes(model):
        grids = [[tokens.grid(image) for image in row] for row in images]
        inputs["position_ids"] = image_positions(positions, mask, starts, grids)
    return inputs


def _starts(
    is_image: torch.Tensor, input_ids: torch.Tensor, images: Sequence[tuple[Image, ...]], tokens: ImageTokens
) -> list[list[int]]:
    """The column where each image's placeholders start, row by row."""
    if not any(images) and not is_image.any():
        return [[] for _ in images]
    rows = torch.where(is_image, input_ids, -1).tolist()
    return [
        tokens.starts(row, found, row=f"row {index}")
        for index, (row, found) in enumerate(zip(rows, images, strict=True))
    ]


def image_positions(
    plain: torch.Tensor,
    mask: torch.Tensor,
    starts: Sequence[Sequence[int]],
    grids: Sequence[Sequence[tuple[int, int]]],
) -> torch.Tensor:
    """M-RoPE positions `(3, B, L)` of time, height and width, from plain ones and the mask, both `(B, L)`.

    Wang et al., "Qwen2-VL", arXiv:2409.12191, section 2.1: a text's token has its number on all three axes; an image
    that starts at n stands at time n, its features at height n + row and width n + column; what follows goes on behind
    the largest of them, at n + max(rows, columns). A row without images keeps its plain positions. `starts` and `grids`
    name the first column of each image, and its features down and across.
    """
    positions = plain.expand(3, *plain.shape).clone()
    for row, (columns, shapes) in enumerate(zip(starts, grids, strict=True)):
        for start, (down, across) in zip(columns, shapes, strict=True):
            end = start + down * across
            place = torch.arange(down * across, device=plain.device)
            within = torch.stack([torch.zeros_like(place), place // across, place % across])
            positions[:, row, start:end] = positions[:, row, start : start + 1] + within
            positions[:, row, end:] += (max(down, across) - down * across) * mask[row, end:]  # padding stays behind
    return positions
