from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from reference_trainer.algorithms.corrections import Correction, importance_weights

KINDS = get_args(Correction)
RATIOS = torch.tensor([[4.0, 0.25, 1.5, 1.0], [0.5, 2.0, 0.5, 1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]])


@pytest.mark.parametrize(
    ("kind", "weights", "cut"),
    [
        ("none", [[1, 1, 1, 0], [1, 0, 1, 1]], [[0, 0, 0, 0], [0, 0, 0, 0]]),
        ("token_truncate", [[2, 0.25, 1.5, 0], [0.5, 0, 0.5, 1]], [[1, 0, 0, 0], [0, 0, 0, 0]]),
        ("token_mask", [[0, 0, 1.5, 0], [0.5, 0, 0.5, 1]], [[1, 1, 0, 0], [0, 0, 0, 0]]),
        ("sequence_truncate", [[1.5, 1.5, 1.5, 0], [0.25, 0, 0.25, 0.25]], [[0, 0, 0, 0], [0, 0, 0, 0]]),
        ("sequence_mask", [[1.5, 1.5, 1.5, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [1, 0, 1, 1]]),
    ],
)
def test_each_kind_bounds_the_ratio_in_its_way(kind: Correction, weights: list, cut: list) -> None:
    floor = 0.3 if kind.endswith("mask") else 0.0
    found = importance_weights(RATIOS.log(), torch.zeros(2, 4), MASK, kind=kind, cap=2.0, floor=floor)
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-12)
    assert found.metrics["correction_fraction"].tolist() == cut
    assert torch.equal(found.metrics["correction_weight"], found.weights)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_policy_has_weight_one_and_a_bound_is_within_itself(kind: Correction) -> None:
    log_probs = torch.tensor([[-1.0, -2.5], [-0.1, -7.0]])
    floor = 1.0 if kind.endswith("mask") else 0.0
    found = importance_weights(log_probs, log_probs.clone(), torch.ones(2, 2), kind=kind, cap=1.0, floor=floor)
    assert found.weights.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert not found.metrics["correction_fraction"].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_masked_poison_leaks_nowhere(kind: Correction, poison: float) -> None:
    clean = importance_weights(torch.tensor([[-1.0, 0.0]]), torch.zeros(1, 2), torch.tensor([[1, 0]]), kind=kind)
    for old, rollout in ((poison, 0.0), (0.0, poison), (poison, poison)):
        found = importance_weights(
            torch.tensor([[-1.0, old]]), torch.tensor([[0.0, rollout]]), torch.tensor([[1, 0]]), kind=kind
        )
        assert torch.equal(found.weights, clean.weights)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("far", [500.0, float("inf")])
def test_a_far_off_engine_gives_finite_weights_at_the_cap_or_none(kind: Correction, far: float) -> None:
    found = importance_weights(torch.zeros(1, 1), torch.full((1, 1), -far), torch.ones(1, 1), kind=kind, cap=2.0)
    expected = 1.0 if kind == "none" else 2.0 if kind.endswith("truncate") else 0.0
    assert found.weights.tolist() == [[expected]]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_carry_no_graph_and_widen_half_precision(kind: Correction) -> None:
    old = torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True)
    found = importance_weights(old, torch.zeros(2, 3, dtype=torch.bfloat16), torch.ones(2, 3), kind=kind)
    assert found.weights.dtype == torch.float32
    assert not found.weights.requires_grad
    for shape in ((0, 3), (2, 0)):
        empty = importance_weights(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape), kind=kind)
        assert empty.weights.shape == shape


def test_unknown_kinds_and_crossed_bounds_are_refused() -> None:
    inputs = [torch.zeros(1, 1)] * 3
    with pytest.raises(ValueError, match="known: none, token_truncate"):
        importance_weights(*inputs, kind="tis")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"floor is 3\.0 and its cap 2\.0"):
        importance_weights(*inputs, kind="token_mask", cap=2.0, floor=3.0)
