from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from reference_trainer.config import AlgorithmConfig
from reference_trainer.data.layout import Row
from reference_trainer.trainers.experience import (
    Experience,
    Trajectory,
    counted_tokens,
    estimate_advantages,
    given_or_computed,
    score_at_last_token,
)

CPU = torch.device("cpu")


def trajectory(*response: int, **changes: object) -> Trajectory:
    return Trajectory(**{"prompt": (1, 2), "response": response, "score": 1.0, "group": 0, **changes})  # type: ignore[arg-type]


def test_tokens_count_unless_they_are_absent_or_masked() -> None:
    found = counted_tokens([trajectory(5, 6, 7, mask=(1, 0, 1)), trajectory(), trajectory(8)], device=CPU)
    assert found.tolist() == [[True, False, True], [False] * 3, [True, False, False]]


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="row 0 has 1 tokens but a mask of 2"):
        counted_tokens([trajectory(5, mask=(1, 1))], device=CPU)


def test_the_score_stands_at_the_last_token_that_counts() -> None:
    mask = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    rewards = score_at_last_token(torch.tensor([1.0, 2.0, 3.0]), mask)
    assert rewards.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]


def test_log_probs_that_came_along_are_kept_and_the_others_computed() -> None:
    def compute(rows: Sequence[Row]) -> torch.Tensor:
        return torch.full((len(rows), 2), -9.0)

    given, absent = trajectory(5, 6, old_log_probs=(-1.0, -2.0)), trajectory(7)
    assert given_or_computed([given], "old_log_probs", compute).tolist() == [[-1.0, -2.0]]
    assert given_or_computed([given, absent], "old_log_probs", compute).tolist() == [[-1.0, -2.0], [-9.0, -9.0]]
    with pytest.raises(ValueError, match="row 0 has 2 tokens but 1 old_log_probs"):
        given_or_computed([trajectory(5, 6, old_log_probs=(-1.0,))], "old_log_probs", compute)


def test_a_group_advantage_is_every_counted_token_of_its_row() -> None:
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    found, returns = estimate_advantages(
        AlgorithmConfig(advantage="grpo", divide_by_std=False),
        scores=torch.tensor([1.0, 0.0, 2.0]),
        groups=["a", "a", "a"],
        mask=mask,
        values=None,
    )
    assert found.tolist() == [[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]
    assert returns is None


@pytest.mark.parametrize("whiten", [True, False])
def test_gae_is_whitened_over_the_batch_and_its_returns_are_not(whiten: bool) -> None:
    mask = torch.tensor([[True, True], [True, False]])
    values = torch.tensor([[0.5, 0.25], [0.0, 9.0]])
    found, returns = estimate_advantages(
        AlgorithmConfig(advantage="gae", gamma=1.0, lam=1.0, whiten=whiten, std_eps=0.0),
        scores=torch.tensor([1.0, 0.0]),
        groups=["a", "b"],
        mask=mask,
        values=values,
    )
    plain = torch.tensor([[0.5, 0.75], [0.0, 0.0]])
    kept = plain[mask]
    expected = torch.zeros(2, 2)
    expected[mask] = (kept - kept.mean()) / kept.std() if whiten else kept
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(returns, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


def test_selected_rows_come_in_order_and_cut_to_their_longest_response() -> None:
    tensor = torch.arange(6.0).view(3, 2)
    whole = Experience(
        rows=(Row((1,), (2, 3)), Row((4,), (5,)), Row((6,), ())),
        mask=torch.ones(3, 2, dtype=torch.bool),
        old_log_probs=tensor,
        reference_log_probs=tensor,
        advantages=tensor,
    )
    part = whole.select([2, 1])
    assert part.rows == (Row((6,), ()), Row((4,), (5,)))
    assert part.advantages.tolist() == [[4.0], [2.0]]
    assert part.old_values is None
    assert whole.select([]).advantages.shape == (0, 0)
