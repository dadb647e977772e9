from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.logprobs import entropy, token_log_probs


def softmax64(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 7)),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    scale=st.sampled_from([1.0, 30.0]),
    seed=st.integers(0, 2**31),
)
def test_they_equal_the_definition_in_float64(
    shape: tuple[int, int, int], temperature: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=shape) * scale
    labels = rng.integers(0, shape[2], size=shape[:2])
    probabilities = softmax64(logits, temperature)
    expected = np.log(np.take_along_axis(probabilities, labels[..., None], -1)[..., 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        expected_entropy = -np.where(probabilities > 0, probabilities * np.log(probabilities), 0.0).sum(-1)

    found = token_log_probs(torch.tensor(logits), torch.tensor(labels), temperature=temperature)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        entropy(torch.tensor(logits), temperature=temperature).numpy(), expected_entropy, rtol=1e-9, atol=1e-12
    )


def test_the_gradient_of_a_log_prob_is_indicator_minus_probability() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 1, 2], [3, 4, 0]])
    token_log_probs(logits, labels, temperature=0.5).sum().backward()
    expected = (np.eye(5)[labels.numpy()] - softmax64(logits.detach().numpy(), 0.5)) / 0.5
    np.testing.assert_allclose(logits.grad.numpy(), expected, atol=1e-12)


def test_an_impossible_token_adds_nothing_to_entropy_or_its_gradient() -> None:
    logits = torch.tensor([[[0.0, 1.0, -torch.inf]]], dtype=torch.float64, requires_grad=True)
    found = entropy(logits)
    found.sum().backward()
    two = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    expected = entropy(two)
    expected.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(logits.grad[..., :2], two.grad)
    assert logits.grad[0, 0, 2] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_on_in_float32(dtype: torch.dtype) -> None:
    logits = (torch.randn(1, 2, 300) * 4).to(dtype)
    labels = torch.tensor([[0, 299]])
    found = token_log_probs(logits, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, token_log_probs(logits.double(), labels).float())
    assert entropy(logits).dtype == torch.float32


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_without_meaning_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        token_log_probs(torch.zeros(1, 1, 2), torch.zeros(1, 1, dtype=torch.int64), temperature=temperature)
