"""The oracles against numbers worked out by hand or by a slower road: nothing here comes from the code under test."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.cases import oracles


def test_log_probs_and_entropy_of_a_fair_coin() -> None:
    logits = np.zeros((1, 1, 2))
    value, gradient = oracles.token_log_probs(logits, np.array([[1]]), temperature=1.0)
    assert value == pytest.approx(-math.log(2))
    assert gradient[0, 0].tolist() == [-0.5, 0.5]
    value, gradient = oracles.entropy(logits, temperature=1.0)
    assert value == pytest.approx(math.log(2))
    assert gradient == pytest.approx(0.0)


def test_temperature_divides_the_logits() -> None:
    logits = np.array([[[math.log(9.0), 0.0]]])
    value, gradient = oracles.token_log_probs(logits, np.array([[0]]), temperature=2.0)
    assert value == pytest.approx(math.log(0.75))  # 9^½ : 1
    assert gradient[0, 0] == pytest.approx([0.125, -0.125])


def test_an_impossible_token_adds_nothing_to_the_entropy() -> None:
    value, gradient = oracles.entropy(np.array([[[0.0, 0.0, -np.inf]]]), temperature=1.0)
    assert value == pytest.approx(math.log(2))
    assert gradient[0, 0, 2] == 0.0


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [
        ("k1", math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, math.log(2)),
        ("k3", math.log(2) - 0.5, 0.5),
        ("abs", math.log(2), 1.0),
    ],
)
def test_kl_estimators_of_a_token_that_became_twice_as_likely(kind: str, value: float, slope: float) -> None:
    got, gradient = oracles.kl(kind, np.array(math.log(0.5)), np.array(math.log(0.25)), log_ratio_bound=20.0)
    assert got == pytest.approx(value)
    assert gradient == pytest.approx(slope)


def test_k3_is_the_kl_on_average() -> None:
    policy, reference = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    k3, _ = oracles.kl("k3", np.log(policy), np.log(reference), log_ratio_bound=20.0)
    assert policy @ k3 == pytest.approx(policy @ np.log(policy / reference))


def test_gae_of_two_tokens() -> None:
    rewards, values = np.array([[0.0, 1.0]]), np.array([[0.5, 0.25]])
    advantages, returns, _ = oracles.gae(rewards, values, np.ones((1, 2)), gamma=0.5, lam=0.5)
    # δ_1 = 1 - 0.25 = 0.75; δ_0 = 0.5·0.25 - 0.5 = -0.375; A_0 = δ_0 + 0.25·0.75
    assert advantages.tolist() == [[-0.1875, 0.75]]
    assert returns.tolist() == [[0.3125, 1.0]]


def test_gae_deletes_what_is_masked() -> None:
    whole = oracles.gae(np.array([[0.0, 1.0]]), np.array([[0.5, 0.25]]), np.ones((1, 2)), gamma=0.9, lam=0.8)
    holed = oracles.gae(
        np.array([[0.0, np.nan, 1.0]]), np.array([[0.5, np.inf, 0.25]]), np.array([[1, 0, 1]]), gamma=0.9, lam=0.8
    )
    assert holed[0][0].tolist() == [whole[0][0, 0], 0.0, whole[0][0, 1]]


def test_group_advantages_divide_by_the_sample_deviation() -> None:
    scores, groups = np.array([0.0, 5.0, 2.0, 7.0]), [1, -3, 1, 9]
    got = oracles.group_advantages(scores, groups, ddof=1, eps=0.0, divide_by_std=True, singleton="score")
    assert got == pytest.approx([-1 / math.sqrt(2), 5.0, 1 / math.sqrt(2), 7.0])
    got = oracles.group_advantages(scores, groups, ddof=1, eps=0.0, divide_by_std=False, singleton="zero")
    assert got == pytest.approx([-1.0, 0.0, 1.0, 0.0])


def test_equal_scores_have_no_advantage_at_all() -> None:
    got = oracles.group_advantages(np.full(3, 0.1), [0, 0, 0], ddof=1, eps=1e-6, divide_by_std=True, singleton="zero")
    assert got.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.5, 2.0, -2.4, 0.0, True),  # a good token is not pushed beyond 1.2
        (1.5, -2.0, 3.0, 3.0, False),  # a bad one that became likelier is pushed back
        (0.5, 2.0, -1.0, -1.0, False),
        (0.5, -2.0, 1.6, 0.0, True),
        (1.1, 1.0, -1.1, -1.1, False),
    ],
)
def test_ppo_clips_only_what_would_gain(
    ratio: float, advantage: float, loss: float, slope: float, clipped: bool
) -> None:
    value, gradient, taken = oracles.ppo_clip(
        np.array([math.log(ratio)]), np.zeros(1), np.array([advantage]), low=0.2, high=0.2, log_ratio_bound=20.0
    )
    assert value[0] == pytest.approx(loss)
    assert gradient[0] == pytest.approx(slope)
    assert bool(taken[0]) is clipped


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [(1.0, 0.0, 0.0, 0.5, 1.0), (1.0, 0.0, 2.0, 1.62, 0.0), (0.1, 0.0, 2.0, 1.805, -1.9)],
)
def test_the_value_loss_takes_the_worse_of_the_two(
    value: float, old: float, target: float, loss: float, slope: float
) -> None:
    got, gradient, _ = oracles.clipped_value_loss(np.array([value]), np.array([old]), np.array([target]), clip=0.2)
    assert got[0] == pytest.approx(loss)
    assert gradient[0] == pytest.approx(slope)


@pytest.mark.parametrize(
    ("mode", "horizon", "expected"),
    [
        ("token_mean", None, (1 + 2 + 6) / 3),
        ("seq_mean_token_sum", None, (3 + 6) / 2),
        ("seq_mean_token_mean", None, (1.5 + 6) / 2),
        ("seq_mean_token_sum_norm", None, (3 + 6) / 2 / 3),
        ("seq_mean_token_sum_norm", 10, (3 + 6) / 2 / 10),
    ],
)
def test_aggregations_of_three_rows_of_which_one_is_empty(mode: str, horizon: int | None, expected: float) -> None:
    values = np.array([[1.0, 2.0, 9.0], [9.0, 6.0, 9.0], [9.0, 9.0, 9.0]])
    mask = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    weights = oracles.aggregation_weights(mask, mode, empty_row="left_out", horizon=horizon)
    assert (weights * values).sum() == pytest.approx(expected)
    if mode != "token_mean":
        counted = oracles.aggregation_weights(mask, mode, empty_row="counted", horizon=horizon)
        assert (counted * values).sum() == pytest.approx(expected * 2 / 3)


def test_rloo_and_reinforce_pp_of_a_few_numbers() -> None:
    got = oracles.rloo(np.array([0.0, 3.0, 6.0, 5.0]), [7, 7, 7, -1], singleton="score")
    assert got.tolist() == [-4.5, 0.0, 4.5, 5.0]
    assert oracles.rloo(np.full(3, 0.1), [0, 0, 0], singleton="zero").tolist() == [0.0, 0.0, 0.0]
    sums, terms = oracles.reinforce_pp(np.array([[1.0, np.nan, -4.0]]), np.array([[1, 0, 1]]), gamma=0.5)
    assert sums.tolist() == [[-1.0, 0.0, -4.0]]
    assert terms.tolist() == [[3.0, 0.0, 4.0]]


def test_informative_rows_are_those_of_groups_with_two_scores() -> None:
    assert oracles.informative_rows(np.array([1.0, 2.0, 1.0, 1.0, 5.0]), [0, 1, 0, 1, 2]) == [1, 3]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "taken"), [(5.0, -1.0, 3.0, True), (5.0, 1.0, -1.2, False)])
def test_the_dual_clip_is_of_negative_advantages(ratio: float, advantage: float, loss: float, taken: bool) -> None:
    value, gradient, cut = oracles.dual_clip(
        np.array([math.log(ratio)]),
        np.zeros(1),
        np.array([advantage]),
        low=0.2,
        high=0.2,
        dual=3.0,
        log_ratio_bound=20.0,
    )
    assert value[0] == pytest.approx(loss)
    assert gradient[0] == 0.0
    assert bool(cut[0]) is taken


def test_gspo_has_the_geometric_mean_on_each_counted_token() -> None:
    new, mask = np.log(np.array([[4.0, 1.0, 9.0]])), np.array([[1, 1, 0]])
    loss, gradient, clipped = oracles.gspo(
        new, np.zeros((1, 3)), np.array([[1.0, -1.0, 1.0]]), mask, low=0.2, high=0.2, log_ratio_bound=20.0
    )
    assert loss[0] == pytest.approx([-1.2, 2.0, 0.0])
    assert gradient[0] == pytest.approx([0.0, 2.0, 0.0])
    assert clipped.tolist() == [[True, False, False]]


def test_cispo_has_a_gradient_where_it_clips() -> None:
    loss, gradient, clipped = oracles.cispo(
        np.array([-1.0]), np.array([-3.0]), np.array([2.0]), low=0.2, high=0.5, log_ratio_bound=20.0
    )
    assert (loss[0], gradient[0], bool(clipped[0])) == (3.0, -3.0, True)


def test_weights_are_cut_or_masked_by_token_and_by_sequence() -> None:
    old, mask = np.log(np.array([[4.0, 0.25, 7.0]])), np.array([[1, 1, 0]])
    for kind, weights in (
        ("none", [1.0, 1.0, 0.0]),
        ("token_truncate", [2.0, 0.25, 0.0]),
        ("token_mask", [0.0, 0.0, 0.0]),
        ("sequence_truncate", [1.0, 1.0, 0.0]),
        ("sequence_mask", [1.0, 1.0, 0.0]),
    ):
        got, _ = oracles.importance_weights(old, np.zeros((1, 3)), mask, kind, cap=2.0, floor=0.5, log_ratio_bound=20.0)
        assert got[0] == pytest.approx(weights), kind


def test_the_overlong_penalty_and_the_penalised_reward() -> None:
    got = oracles.overlong_penalty(np.array([6.0, 7.0, 10.0]), max_length=10, buffer=4, factor=2.0, enabled=True)
    assert got.tolist() == [0.0, -0.5, -2.0]
    got = oracles.kl_penalised_rewards(
        np.array([[1.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([[1, 0]]), coefficient=0.5
    )
    assert got.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_the_values(seed: int) -> None:
    """Central differences, at points away from the kinks."""
    random = np.random.default_rng(seed)
    first, second, third = random.uniform(-2, 0, (3, 4))
    for kind in ("k1", "k2", "k3", "abs"):
        _assert_slope(lambda x, kind=kind: oracles.kl(kind, x, second, log_ratio_bound=20.0)[:2], first)
    _assert_slope(lambda x: oracles.ppo_clip(x, second, third, low=0.2, high=0.2, log_ratio_bound=20.0)[:2], first)
    bounds = {"low": 0.2, "high": 0.2, "log_ratio_bound": 20.0}
    _assert_slope(lambda x: oracles.dual_clip(x, second, third, **bounds, dual=1.5)[:2], first)
    _assert_slope(lambda x: oracles.clipped_value_loss(x, second, third, clip=0.2)[:2], first)
    logits = random.normal(size=(1, 2, 5))
    for index in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[index] = 1e-5
        for function in (
            lambda x: oracles.entropy(x, temperature=0.7),
            lambda x: oracles.token_log_probs(x, np.array([[1, 4]]), temperature=0.7),
        ):
            slope = (function(logits + step)[0].sum() - function(logits - step)[0].sum()) / 2e-5
            assert function(logits)[1][index] == pytest.approx(slope, abs=1e-8)


def _assert_slope(function: object, at: np.ndarray) -> None:
    assert callable(function)
    slope = (function(at + 1e-6)[0] - function(at - 1e-6)[0]) / 2e-6
    assert function(at)[1] == pytest.approx(slope, abs=1e-7)
