from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.aggregation import aggregate
from reference_trainer.algorithms.losses import cispo_loss, gspo_loss, policy_loss, ppo_clip_loss

SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 5))
KINDS = ("ppo_clip", "gspo", "cispo")


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "cut"),
    [
        (5.0, -2.0, 6.0, 0.0, 1.0),  # a bad token that became far likelier: at most c|A|, and no pull
        (2.0, -2.0, 4.0, 4.0, 0.0),
        (5.0, 2.0, -2.4, 0.0, 0.0),  # a good one is bounded by the first clip alone
        (0.1, -2.0, 1.6, 0.0, 0.0),
    ],
)
def test_the_second_clip_bounds_bad_tokens_alone(
    ratio: float, advantage: float, loss: float, slope: float, cut: float
) -> None:
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    found = ppo_clip_loss(log_probs, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1), dual_clip=3.0)
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(loss)
    assert log_probs.grad.item() == pytest.approx(slope)
    assert found.metrics["dual_clip_fraction"].item() == cut


def test_the_second_clip_is_told_of_only_when_used() -> None:
    inputs = [torch.zeros(1, 2)] * 3
    assert "dual_clip_fraction" not in ppo_clip_loss(*inputs, torch.ones(1, 2)).metrics
    with pytest.raises(ValueError, match="dual_clip is 1"):
        ppo_clip_loss(*inputs, torch.ones(1, 2), dual_clip=1.0)


@given(shape=SHAPES, clip=st.sampled_from([3e-4, 0.2]), seed=st.integers(0, 2**31))
def test_gspo_averaged_over_tokens_and_rows_is_the_sequence_form(
    shape: tuple[int, int], clip: float, seed: int
) -> None:
    """Equations 5 and 7 differentiated as they stand, with one advantage a row: the token form must agree."""
    rng = np.random.default_rng(seed)
    new, old = rng.normal(size=(2, *shape)) * 0.3
    advantages, mask = rng.normal(size=(shape[0], 1)), rng.random(shape) < 0.7
    log_probs = torch.tensor(new, requires_grad=True)
    per_token = gspo_loss(
        log_probs,
        torch.tensor(old),
        torch.tensor(np.broadcast_to(advantages, shape).copy()),
        torch.tensor(mask),
        clip_low=clip,
        clip_high=clip,
    )
    (gradient,) = torch.autograd.grad(aggregate(per_token.loss, torch.tensor(mask), "seq_mean_token_mean"), log_probs)

    again = torch.tensor(new, requires_grad=True)
    objective = torch.zeros((), dtype=torch.float64) + 0.0 * again.sum()
    rows = [row for row in range(shape[0]) if mask[row].any()]
    for row in rows:
        kept = torch.tensor(mask[row])
        s = ((again[row][kept] - torch.tensor(old[row])[kept]).mean()).exp()
        advantage = advantages[row, 0]
        objective = objective + torch.minimum(s * advantage, s.clamp(1 - clip, 1 + clip) * advantage) / len(rows)
    (expected,) = torch.autograd.grad(-objective, again)
    torch.testing.assert_close(gradient, expected)


def test_gspo_clips_whole_rows() -> None:
    new = torch.log(torch.tensor([[4.0, 1.0, 9.0], [4.0, 0.25, 9.0]], dtype=torch.float64))
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    found = gspo_loss(new, torch.zeros(2, 3), torch.ones(2, 3), mask, clip_low=0.2, clip_high=0.2)
    torch.testing.assert_close(found.loss, torch.tensor([[-1.2, -1.2, 0.0], [-1.0, -1.0, 0.0]], dtype=torch.float64))
    assert found.metrics["clip_fraction"].tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("ratio", "weight"), [(5.0, 1.2), (1.1, 1.1), (0.1, 0.1)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_clips_the_weight_and_keeps_the_gradient(ratio: float, weight: float, advantage: float) -> None:
    log_probs = torch.tensor([[-0.5]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-0.5 - math.log(ratio)]], dtype=torch.float64)
    found = cispo_loss(log_probs, old, torch.tensor([[advantage]]), torch.ones(1, 1))
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(weight * advantage * 0.5)
    assert log_probs.grad.item() == pytest.approx(-weight * advantage)
    assert found.metrics["clip_fraction"].item() == float(weight != ratio)


def test_without_a_lower_bound_cispo_keeps_small_weights() -> None:
    log_probs, old = torch.tensor([[-3.0]]), torch.tensor([[-1.0]])
    found = cispo_loss(log_probs, old, torch.ones(1, 1), torch.ones(1, 1), clip_low=0.2)
    assert found.loss.item() == pytest.approx(0.8 * 3.0)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_multiply_the_loss_and_are_not_differentiated(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    new, old, advantages = (torch.randn(2, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    mask, bounds = torch.tensor([[1, 1, 0], [1, 0, 1]]), {"clip_low": 0.2, "clip_high": 0.2}
    weights = torch.tensor([[0.5, 2.0, math.nan], [0.0, math.inf, 3.0]], dtype=torch.float64, requires_grad=True)
    new.requires_grad_()
    plain = policy_loss(kind, new, old, advantages, mask, **bounds)  # type: ignore[arg-type]
    weighted = policy_loss(kind, new, old, advantages, mask, **bounds, weights=weights)  # type: ignore[arg-type]
    factors = torch.tensor([[0.5, 2.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(weighted.loss, plain.loss * factors)
    (gradient,) = torch.autograd.grad(plain.loss, new, factors, retain_graph=True)
    (found,) = torch.autograd.grad(weighted.loss.sum(), new, retain_graph=True)
    torch.testing.assert_close(found, gradient)
    assert torch.autograd.grad(weighted.loss.sum(), weights, allow_unused=True) == (None,)
    for name, metric in plain.metrics.items():
        assert torch.equal(metric, weighted.metrics[name])
        assert not metric.requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_masked_poison_leaks_nowhere(kind: str, poison: float) -> None:
    good, bad = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, poison]])
    for position in range(3):
        inputs = [(bad if index == position else good).clone() for index in range(3)]
        inputs[0].requires_grad_()
        found = policy_loss(kind, *inputs, torch.tensor([[1, 0]]), clip_low=0.2, clip_high=0.2)  # type: ignore[arg-type]
        found.loss.sum().backward()
        assert bool(found.loss.isfinite().all())
        assert all(bool(metric.isfinite().all()) for metric in found.metrics.values())
        assert bool(inputs[0].grad.isfinite().all())
        assert inputs[0].grad[0, 1] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (3, 0)])
def test_nothing_counted_gives_a_finite_loss_and_no_gradient(kind: str, shape: tuple[int, int]) -> None:
    log_probs = torch.full(shape, -1.0, requires_grad=True)
    found = policy_loss(
        kind,  # type: ignore[arg-type]
        log_probs,
        torch.zeros(shape),
        torch.ones(shape),
        torch.zeros(shape),
        clip_low=0.2,
        clip_high=0.2,
        weights=torch.ones(shape),
    )
    found.loss.sum().backward()
    assert not found.loss.any()
    assert not log_probs.grad.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_ratio_that_overflows_stays_finite(kind: str) -> None:
    log_probs = torch.tensor([[0.0, -500.0]], requires_grad=True)
    found = policy_loss(
        kind,  # type: ignore[arg-type]
        log_probs,
        torch.tensor([[-500.0, 0.0]]),
        torch.tensor([[-1.0, 1.0]]),
        torch.ones(1, 2),
        clip_low=0.2,
        clip_high=0.2,
    )
    found.loss.sum().backward()
    assert bool(found.loss.isfinite().all())
    assert bool(log_probs.grad.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_float32_losses_and_half_gradients(kind: str, dtype: torch.dtype) -> None:
    inputs = [torch.randn(2, 3).to(dtype) for _ in range(3)]
    inputs[0].requires_grad_()
    found = policy_loss(
        kind,  # type: ignore[arg-type]
        *inputs,
        torch.ones(2, 3),
        clip_low=0.2,
        clip_high=0.2,
        weights=torch.ones(2, 3, dtype=dtype),
    )
    assert found.loss.dtype == torch.float32
    found.loss.sum().backward()
    assert inputs[0].grad.dtype == dtype


def test_an_unknown_kind_and_a_bound_that_it_has_not_are_refused() -> None:
    inputs = [torch.zeros(1, 1)] * 4
    with pytest.raises(ValueError, match="known: ppo_clip, gspo, cispo"):
        policy_loss("ppo", *inputs, clip_low=0.2, clip_high=0.2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r'dual_clip is 3\.0, which only "ppo_clip" has'):
        policy_loss("gspo", *inputs, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert "dual_clip_fraction" in policy_loss("ppo_clip", *inputs, clip_low=0.2, clip_high=0.2, dual_clip=3.0).metrics
