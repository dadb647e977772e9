from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.data.padding import Side, pad_row


@given(
    tokens=st.lists(st.integers(0, 300), max_size=6),
    missing=st.integers(0, 4),
    side=st.sampled_from(["left", "right"]),
    pad_id=st.sampled_from([None, 0, 256]),
)
def test_a_row_is_padded_with_its_mask(tokens: list[int], missing: int, side: Side, pad_id: int | None) -> None:
    length = len(tokens) + missing
    ids, mask = pad_row(tokens, length=length, side=side, pad_id=pad_id)
    assert ids.dtype == mask.dtype == torch.int64
    assert ids.shape == mask.shape == (1, length)
    assert int(mask.sum()) == len(tokens)
    assert ids[mask.bool()].tolist() == tokens
    assert ids[~mask.bool()].tolist() == [pad_id or 0] * missing
    if tokens and missing:
        assert mask[0, 0 if side == "left" else -1] == 0


def test_tokens_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens do not fit in length 2"):
        pad_row([1, 2, 3], length=2, side="left", pad_id=0)
