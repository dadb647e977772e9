from __future__ import annotations

import pytest
import torch

from reference_trainer.algorithms.shaping import overlong_penalty


def test_the_penalty_falls_linearly_over_the_buffer() -> None:
    lengths = torch.tensor([0, 6, 7, 8, 10])
    found = overlong_penalty(lengths, max_length=10, buffer=4, factor=2.0)
    assert found.tolist() == [0.0, 0.0, -0.5, -1.0, -2.0]


def test_the_whole_budget_may_be_the_buffer() -> None:
    assert overlong_penalty(torch.tensor([0, 1, 4]), max_length=4, buffer=4).tolist() == [0.0, -0.25, -1.0]


@pytest.mark.parametrize(
    "settings", [{"enabled": False, "buffer": 0}, {"buffer": None}, {"enabled": False, "buffer": 99}]
)
@pytest.mark.parametrize("max_length", [10, None])
def test_switched_off_it_is_zero_whatever_the_rest(settings: dict, max_length: int | None) -> None:
    assert overlong_penalty(torch.tensor([3, 99]), max_length=max_length, **settings).tolist() == [0.0, 0.0]
    assert overlong_penalty(torch.zeros(0, dtype=torch.int64), max_length=max_length, **settings).shape == (0,)


@pytest.mark.parametrize("buffer", [0, -1, 11])
def test_a_buffer_outside_the_budget_is_refused(buffer: int) -> None:
    with pytest.raises(ValueError, match=f"buffer is {buffer} tokens of at most 10"):
        overlong_penalty(torch.tensor([1]), max_length=10, buffer=buffer)
