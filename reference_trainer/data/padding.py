"""Padding of one row to a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

Side = Literal["left", "right"]


def pad_row(tokens: Sequence[int], *, length: int, side: Side, pad_id: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad to `length` on `side`: ids and mask, both `(1, length)` int64, the mask 1 where a token is.

    No tokens give a row of padding; a tokenizer without a pad id (None) fills with 0. Raises ValueError when the
    tokens are longer than `length`.
    """
    ids, mask = padded(tokens, length=length, side=side, pad_id=pad_id)
    # The dtype is named because an empty list would give float32; the view keeps length 0 two-dimensional.
    return torch.tensor(ids, dtype=torch.int64).view(1, length), torch.tensor(mask, dtype=torch.int64).view(1, length)


def padded(tokens: Sequence[int], *, length: int, side: Side, pad_id: int | None) -> tuple[list[int], list[int]]:
    """Ids and mask of `pad_row` as plain lists, from which a whole batch is made at once."""
    missing = length - len(tokens)
    if missing < 0:
        raise ValueError(f"{len(tokens)} tokens do not fit in length {length}; cut them or raise it")
    fill, there = [pad_id if pad_id is not None else 0] * missing, [1] * len(tokens)
    if side == "left":
        return [*fill, *tokens], [0] * missing + there
    return [*tokens, *fill], there + [0] * missing
