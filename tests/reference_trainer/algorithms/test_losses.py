from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.losses import ppo_clip_loss, value_loss

SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 5))


@given(shape=SHAPES, low=st.sampled_from([0.0, 0.2]), high=st.sampled_from([0.2, 0.28]), seed=st.integers(0, 2**31))
def test_the_policy_loss_and_its_gradient_equal_equation_7(
    shape: tuple[int, int], low: float, high: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    new, old, advantages = rng.normal(size=(3, *shape)) * 0.5
    mask = rng.random(shape) < 0.7
    log_probs = torch.tensor(new, requires_grad=True)
    found = ppo_clip_loss(
        log_probs, torch.tensor(old), torch.tensor(advantages), torch.tensor(mask), clip_low=low, clip_high=high
    )
    found.loss.sum().backward()

    ratio = np.exp(new - old)
    clipped = np.clip(ratio, 1 - low, 1 + high)
    expected = np.where(mask, -np.minimum(ratio * advantages, clipped * advantages), 0.0)
    in_force = clipped * advantages < ratio * advantages
    slope = np.where(mask & ~in_force, -ratio * advantages, 0.0)  # d ratio / d log-prob is the ratio
    np.testing.assert_allclose(found.loss.detach().numpy(), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(log_probs.grad.numpy(), slope, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(found.metrics["clip_fraction"].numpy(), np.where(mask, in_force, 0.0))
    np.testing.assert_allclose(
        found.metrics["approx_kl"].numpy(), np.where(mask, np.expm1(new - old) - (new - old), 0.0), atol=1e-12
    )


def test_an_overflowing_ratio_stays_finite() -> None:
    log_probs = torch.tensor([[0.0, 0.0]], requires_grad=True)
    found = ppo_clip_loss(log_probs, torch.full((1, 2), -500.0), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2))
    found.loss.sum().backward()
    np.testing.assert_allclose(found.loss.detach().numpy(), [[np.exp(20.0), -1.2]], rtol=1e-6)
    assert log_probs.grad.tolist() == [[0.0, 0.0]]


@given(shape=SHAPES, clip=st.sampled_from([None, 0.2]), seed=st.integers(0, 2**31))
def test_the_value_loss_and_its_gradient_equal_the_definition(
    shape: tuple[int, int], clip: float | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    new, old, returns = rng.normal(size=(3, *shape))
    mask = rng.random(shape) < 0.7
    values = torch.tensor(new, requires_grad=True)
    found = value_loss(values, torch.tensor(old), torch.tensor(returns), torch.tensor(mask), value_clip=clip)
    found.loss.sum().backward()

    plain = (new - returns) ** 2 / 2
    bounded = new if clip is None else old + np.clip(new - old, -clip, clip)
    clipped = (bounded - returns) ** 2 / 2
    expected = np.where(mask, np.maximum(plain, clipped), 0.0)
    # Inside the clip both branches are one number, which rounding may tell apart.
    in_force = (clipped > plain) & (np.abs(new - old) > (np.inf if clip is None else clip))
    slope = np.where(mask & ~in_force, new - returns, 0.0)
    np.testing.assert_allclose(found.loss.detach().numpy(), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(values.grad.numpy(), slope, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(found.metrics["value_clip_fraction"].numpy(), np.where(mask, in_force, 0.0))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_masked_poison_leaks_nowhere(poison: float) -> None:
    good = torch.tensor([[-1.0, -1.0]])
    bad = torch.tensor([[-1.0, poison]])
    mask = torch.tensor([[1, 0]])
    for position in range(3):
        inputs = [bad.clone() if index == position else good.clone() for index in range(3)]
        for tensor in inputs:
            tensor.requires_grad_()
        for term in (ppo_clip_loss(*inputs, mask), value_loss(*inputs, mask)):
            term.loss.sum().backward()
            assert bool(term.loss.isfinite().all())
            assert all(bool(metric.isfinite().all()) for metric in term.metrics.values())
        for tensor in inputs:
            assert bool(tensor.grad.isfinite().all())
            assert tensor.grad[0, 1] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_float32_losses(dtype: torch.dtype) -> None:
    inputs = [torch.randn(2, 3).to(dtype) for _ in range(3)]
    assert ppo_clip_loss(*inputs, torch.ones(2, 3)).loss.dtype == torch.float32
    assert value_loss(*inputs, torch.ones(2, 3)).loss.dtype == torch.float32
