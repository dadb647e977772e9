from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.kl import kl_estimate, kl_k3, kl_penalised_rewards

LOG_PROBS = st.lists(st.floats(-15, 0), min_size=0, max_size=8)


def oracle(kind: str, policy: np.ndarray, reference: np.ndarray) -> np.ndarray:
    log_r = reference - policy
    return {"k1": -log_r, "k2": log_r**2 / 2, "k3": np.expm1(log_r) - log_r, "abs": np.abs(log_r)}[kind]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
@given(policy=LOG_PROBS, seed=st.integers(0, 1000))
def test_each_estimator_equals_its_formula(kind: str, policy: list[float], seed: int) -> None:
    ours = np.array(policy, dtype=np.float64)
    reference = np.random.default_rng(seed).uniform(-15, 0, size=ours.shape)
    found = kl_estimate(kind, torch.tensor(ours), torch.tensor(reference))  # type: ignore[arg-type]
    np.testing.assert_allclose(found.numpy(), oracle(kind, ours, reference), rtol=1e-12, atol=1e-15)


@given(
    st.lists(st.floats(-1e-3, 1e-3), min_size=1, max_size=20),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_k3_is_never_negative_and_keeps_small_values(differences: list[float], dtype: torch.dtype) -> None:
    difference = torch.tensor(differences, dtype=dtype)
    found = kl_k3(torch.zeros_like(difference), difference)
    assert bool((found >= 0).all())
    # Of x²/2 what float can keep of it: expm1 is right to an ulp of x.
    np.testing.assert_allclose(
        found.double(),
        oracle("k3", np.zeros(len(differences)), difference.double().numpy()),
        rtol=1e-4,
        atol=torch.finfo(dtype).eps * 2e-3,
    )


def test_k3_has_the_gradient_one_minus_r() -> None:
    policy = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.5, -2.0, -1.0], dtype=torch.float64)
    kl_k3(policy, reference).sum().backward()
    torch.testing.assert_close(policy.grad, 1 - (reference - policy.detach()).exp())


def test_k3_stays_finite_in_value_and_gradient_where_r_overflows() -> None:
    policy = torch.tensor([-1000.0, 0.0], requires_grad=True)
    found = kl_k3(policy, torch.tensor([0.0, -1000.0]))
    found.sum().backward()
    np.testing.assert_allclose(found.detach().numpy(), [np.expm1(20.0) - 20.0, np.expm1(-20.0) + 20.0], rtol=1e-6)
    assert policy.grad.tolist() == [0.0, 0.0]


def test_the_penalty_within_the_reward_is_taken_from_counted_tokens_alone() -> None:
    kl = torch.tensor([[0.5, -1.0, float("nan")], [2.0, float("inf"), 0.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]])
    found = kl_penalised_rewards(torch.tensor([[0.0, 1.0, float("inf")], [0.0, 0.0, 3.0]]), kl, mask, coefficient=0.5)
    assert found.tolist() == [[-0.25, 1.5, 0.0], [-1.0, 0.0, 3.0]]
    assert not found.requires_grad
    half = torch.zeros(1, 2, dtype=torch.bfloat16)
    assert kl_penalised_rewards(half, half, torch.ones(1, 2), coefficient=0.1).dtype == torch.float32
    for shape in ((0, 2), (2, 0)):
        empty = torch.zeros(shape)
        assert kl_penalised_rewards(empty, empty, empty, coefficient=1.0).shape == shape
