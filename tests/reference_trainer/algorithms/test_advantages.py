from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.advantages import degenerate_groups, gae, group_advantages, whiten


def gae_of_one_row(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Equation 16 as a double sum: A_t = Σ_l (γλ)^l δ_{t+l}."""
    n = len(rewards)
    following = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * following[t] - values[t] for t in range(n)]
    advantages = [sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, n)) for t in range(n)]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


@given(
    shape=st.tuples(st.integers(0, 4), st.integers(0, 6)),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.95, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_gae_equals_the_sum_over_counted_tokens(shape: tuple[int, int], gamma: float, lam: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=shape), rng.normal(size=shape)
    mask = rng.random(shape) < 0.6
    noise = np.where(mask, 0.0, np.nan)  # nothing that is masked may be read
    advantages, returns = gae(
        torch.tensor(rewards + noise), torch.tensor(values + noise), torch.tensor(mask), gamma=gamma, lam=lam
    )
    for row in range(shape[0]):
        here = mask[row]
        expected = gae_of_one_row(rewards[row, here].tolist(), values[row, here].tolist(), gamma, lam)
        np.testing.assert_allclose(advantages[row, here].numpy(), expected[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(returns[row, here].numpy(), expected[1], rtol=1e-9, atol=1e-12)
        assert (advantages[row, ~here] == 0).all()
        assert (returns[row, ~here] == 0).all()


@given(
    sizes=st.lists(st.integers(1, 5), max_size=5),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    ddof=st.sampled_from([0, 1]),
    seed=st.integers(0, 2**31),
)
def test_a_group_is_standardised_by_its_own_mean_and_deviation(
    sizes: list[int], offset: float, ddof: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    groups = [f"g{index}" for index, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(groups)
    scores = offset + rng.normal(size=len(groups))
    found = group_advantages(torch.tensor(scores), groups, std_ddof=ddof, std_eps=1e-6)
    for name in set(groups):
        here = [index for index, group in enumerate(groups) if group == name]
        own = scores[here]
        expected = (own - own.mean()) / (own.std(ddof=ddof) + 1e-6) if len(own) > 1 else np.zeros(1)
        np.testing.assert_allclose(found[here].numpy(), expected, rtol=1e-6, atol=1e-8)


@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 9))
def test_equal_scores_give_exactly_zero(score: float, size: int) -> None:
    found = group_advantages(torch.full((size,), score, dtype=torch.float32), [0] * size, std_eps=0.0)
    assert found.tolist() == [0.0] * size


def test_a_small_difference_on_a_large_offset_is_kept() -> None:
    scores = torch.tensor([2.0**20, 2.0**20 + 2.0**-3, 2.0**20 - 2.0**-3])
    found = group_advantages(scores, [0, 0, 0], std_eps=0.0)
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, -1.0]))


def test_groups_are_told_apart_by_identity() -> None:
    scores = torch.tensor([0.0, 1.0, 10.0, 30.0, 5.0, 7.0])
    names = ["1", "1", "01", "01", -(10**12), -(10**12)]
    found = group_advantages(scores, names, divide_by_std=False)
    assert found.tolist() == [-0.5, 0.5, -10.0, 10.0, -1.0, 1.0]
    as_tensor = group_advantages(scores, torch.tensor([7, 7, -3, -3, 10**15, 10**15]), divide_by_std=False)  # type: ignore[arg-type]
    assert as_tensor.tolist() == found.tolist()


def test_a_sample_alone_in_its_group_follows_the_convention() -> None:
    scores = torch.tensor([5.0])
    assert group_advantages(scores, ["a"]).tolist() == [0.0]
    assert group_advantages(scores, ["a"], singleton="score").tolist() == [5.0]


def test_scores_and_groups_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="2 scores but 1 group"):
        group_advantages(torch.zeros(2), ["a"])


@given(shape=st.tuples(st.integers(0, 3), st.integers(0, 5)), ddof=st.sampled_from([0, 1]), seed=st.integers(0, 2**31))
def test_whitening_standardises_what_counts(shape: tuple[int, int], ddof: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, mask = rng.normal(size=shape), rng.random(shape) < 0.7
    found = whiten(
        torch.tensor(np.where(mask, values, np.inf)), torch.tensor(mask), std_ddof=ddof, std_eps=1e-8
    ).numpy()
    kept = values[mask]
    expected = (kept - kept.mean()) / (kept.std(ddof=ddof) + 1e-8) if len(kept) > 1 else np.zeros(len(kept))
    np.testing.assert_allclose(found[mask], expected, rtol=1e-6, atol=1e-8)
    assert (found[~mask] == 0).all()


def test_whitening_equal_values_gives_zero() -> None:
    assert whiten(torch.full((2, 3), 0.1), torch.ones(2, 3)).abs().max() == 0


def test_degenerate_groups_are_counted() -> None:
    scores = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5])
    assert degenerate_groups(scores, ["a", "a", "b", "b", "c"]) == 2  # a, and c that is alone
    assert degenerate_groups(torch.zeros(0), []) == 0
