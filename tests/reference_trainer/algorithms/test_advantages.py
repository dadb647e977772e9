from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.advantages import (
    gae,
    group_advantages,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rloo,
    whiten,
)


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


@given(sizes=st.lists(st.integers(1, 5), max_size=5), seed=st.integers(0, 2**31))
def test_rloo_is_the_score_minus_the_mean_of_the_others(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = [(index, "g") for index, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(groups)
    scores = rng.normal(size=len(groups))
    found = rloo(torch.tensor(scores), groups)
    for row, group in enumerate(groups):
        others = [scores[other] for other, its in enumerate(groups) if its == group and other != row]
        assert found[row].item() == pytest.approx(scores[row] - np.mean(others) if others else 0.0, abs=1e-12)


def test_a_sample_without_others_follows_the_convention() -> None:
    for function in (rloo, reinforce_pp_baseline):
        assert function(torch.tensor([5.0]), ["a"]).tolist() == [0.0]
        assert function(torch.tensor([5.0]), ["a"], singleton="score").tolist() == [5.0]


@given(score=st.floats(-1e6, 1e6, width=32), size=st.integers(1, 9), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_no_estimator_tells_equal_rewards_apart(score: float, size: int, dtype: str) -> None:
    scores, names = torch.full((size,), score).to(getattr(torch, dtype)), ["a"] * size
    for found in (rloo(scores, names), reinforce_pp_baseline(scores, names), remax(scores, scores.clone())):
        assert found.tolist() == [0.0] * size
        assert found.dtype == torch.float32
    rewards = torch.zeros(size, 3)
    rewards[:, -1] = score
    assert not whiten(reinforce_pp(rewards, torch.ones(size, 3)), torch.ones(size, 3)).any()


def test_a_small_difference_on_a_large_offset_survives_every_baseline() -> None:
    scores = torch.tensor([2.0**20, 2.0**20 + 2.0**-3, 2.0**20 - 2.0**-3])
    assert rloo(scores, [0, 0, 0]).tolist() == [0.0, 0.1875, -0.1875]
    assert reinforce_pp_baseline(scores, [0, 0, 0]).tolist() == [0.0, 0.125, -0.125]
    assert remax(scores, scores[[0, 0, 0]]).tolist() == [0.0, 0.125, -0.125]
    # In the scores' own half precision 256 + 1 is 256.
    assert remax(torch.tensor([256.0]).bfloat16(), torch.tensor([-1.0]).bfloat16()).tolist() == [257.0]


def test_the_baseline_of_reinforce_pp_is_the_groups_mean_and_no_deviation_divides() -> None:
    found = reinforce_pp_baseline(torch.tensor([0.0, 4.0, 1.0, 9.0]), ["x", "x", "y", "x"])
    torch.testing.assert_close(found, torch.tensor([-13 / 3, -1 / 3, 0.0, 14 / 3]))


@given(
    shape=st.tuples(st.integers(0, 4), st.integers(0, 6)),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_reinforce_pp_sums_what_follows_among_the_counted(shape: tuple[int, int], gamma: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, mask = rng.normal(size=shape), rng.random(shape) < 0.6
    found = reinforce_pp(torch.tensor(np.where(mask, rewards, np.nan)), torch.tensor(mask), gamma=gamma).numpy()
    for row in range(shape[0]):
        kept = rewards[row, mask[row]]
        expected = [sum(gamma**later * reward for later, reward in enumerate(kept[t:])) for t in range(len(kept))]
        np.testing.assert_allclose(found[row, mask[row]], expected, rtol=1e-12, atol=1e-14)
    assert (found[~mask] == 0).all()


def test_remax_refuses_baselines_that_do_not_match() -> None:
    with pytest.raises(ValueError, match=r"scores are \(2,\) but baselines \(1,\)"):
        remax(torch.zeros(2), torch.zeros(1))


def test_no_scores_have_no_advantages() -> None:
    for function in (rloo, reinforce_pp_baseline, group_advantages):
        assert function(torch.zeros(0), []).shape == (0,)
    assert remax(torch.zeros(0), torch.zeros(0)).shape == (0,)
