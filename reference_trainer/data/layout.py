"""Rows of prompt and response laid out for one forward pass, with the response's tokens aligned to `(B, T)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from reference_trainer.data.images import Image
from reference_trainer.data.padding import Side, padded


class Row(NamedTuple):
    """One sequence of the batch."""

    prompt: Sequence[int]
    response: Sequence[int]
    images: tuple[Image, ...] = ()
    """In the order of their placeholders in the prompt."""


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """L columns of padded tokens; T is the longest response."""

    input_ids: torch.Tensor  # (B, L) int64
    attention_mask: torch.Tensor  # (B, L) int64
    position_ids: torch.Tensor  # (B, L) int64: 0 at the first token, wherever padding puts it
    predictor: torch.Tensor  # (B, T) int64: the column whose output predicts response token t; 0 past the response
    labels: torch.Tensor  # (B, T) int64; 0 past the response
    present: torch.Tensor  # (B, T) bool: is there a response token
    images: tuple[tuple[Image, ...], ...] = ()  # of each row


def lay_out(
    rows: Sequence[Row],
    *,
    pad_id: int | None,
    side: Side = "right",
    extra_padding: int = 0,
    response_length: int | None = None,
    device: torch.device | None = None,
) -> RowBatch:
    """Pad each row to the longest plus `extra_padding` columns.

    An empty response is fine; an empty prompt raises ValueError, because nothing would predict the first token.
    `response_length` is T; None takes the longest response.
    """
    for index, row in enumerate(rows):
        if not row.prompt:
            raise ValueError(f"row {index} has an empty prompt; give it at least one token, such as the begin token")
    length = max((len(row.prompt) + len(row.response) for row in rows), default=0) + extra_padding
    longest = max((len(row.response) for row in rows), default=0) if response_length is None else response_length
    ids, masks, predictors, labels = [], [], [], []
    for prompt, response, _ in rows:
        row_ids, row_mask = padded((*prompt, *response), length=length, side=side, pad_id=pad_id)
        first = len(prompt) - 1 + (length - len(prompt) - len(response) if side == "left" else 0)
        absent = [0] * (longest - len(response))
        ids.append(row_ids)
        masks.append(row_mask)
        predictors.append([*range(first, first + len(response)), *absent])
        labels.append([*response, *absent])
    mask = _int_matrix(masks, columns=length)
    lengths = torch.tensor([len(row.response) for row in rows], dtype=torch.int64)
    return RowBatch(
        input_ids=_int_matrix(ids, columns=length).to(device),
        attention_mask=mask.to(device),
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0).to(device),
        predictor=_int_matrix(predictors, columns=longest).to(device),
        labels=_int_matrix(labels, columns=longest).to(device),
        present=(torch.arange(longest) < lengths[:, None]).to(device),
        images=tuple(row.images for row in rows),
    )


def _int_matrix(rows: list[list[int]], *, columns: int) -> torch.Tensor:
    """`(B, columns)` int64, also for no rows or no columns."""
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), columns)
