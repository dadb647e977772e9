from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.aggregation import Aggregation, aggregate, denominators, masked_sum

MODES = get_args(Aggregation)
SHAPES = st.tuples(st.integers(0, 5), st.integers(0, 6))


def oracle(mode: str, values: np.ndarray, mask: np.ndarray, *, horizon: int, empty_row: str) -> float:
    rows = [values[row, mask[row]] for row in range(len(values)) if empty_row == "counted" or mask[row].any()]
    if not mask.any():
        return 0.0
    match mode:
        case "token_mean":
            return values[mask].mean()
        case "seq_mean_token_sum":
            return np.mean([row.sum() for row in rows])
        case "seq_mean_token_mean":
            return np.mean([row.mean() if len(row) else 0.0 for row in rows])
        case _:
            return np.mean([row.sum() / horizon for row in rows])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("empty_row", ["left_out", "counted"])
@given(shape=SHAPES, density=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 2**31))
def test_each_mode_equals_its_definition(
    mode: Aggregation, empty_row: str, shape: tuple[int, int], density: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values, mask = rng.normal(size=shape), rng.random(shape) < density
    found = aggregate(
        torch.tensor(values),
        torch.tensor(mask),
        mode,
        horizon=7,
        empty_row=empty_row,  # type: ignore[arg-type]
    )
    expected = oracle(mode, values, mask, horizon=7, empty_row=empty_row)
    np.testing.assert_allclose(found.item(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("mode", MODES)
@given(
    rows=st.integers(1, 6), parts=st.integers(1, 4), density=st.sampled_from([0.0, 0.4, 1.0]), seed=st.integers(0, 999)
)
def test_micro_batches_add_up_to_the_mini_batch(
    mode: Aggregation, rows: int, parts: int, density: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = torch.tensor(rng.normal(size=(rows, 4)), requires_grad=True)
    mask = torch.tensor(rng.random((rows, 4)) < density)
    whole_loss = aggregate(values, mask, mode, horizon=4)
    (whole_gradient,) = torch.autograd.grad(whole_loss, values)
    whole = denominators(mask)
    pieces = [
        aggregate(values[part], mask[part], mode, whole=whole, horizon=4)
        for part in torch.tensor_split(torch.arange(rows), parts)
    ]
    summed = torch.stack(pieces).sum()
    (gradient,) = torch.autograd.grad(summed, values)
    torch.testing.assert_close(summed, whole_loss)
    torch.testing.assert_close(gradient, whole_gradient)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_what_is_masked_reaches_neither_value_nor_gradient(mode: Aggregation, poison: float) -> None:
    values = torch.tensor([[1.0, poison], [poison, poison]], requires_grad=True)
    mask = torch.tensor([[1, 0], [0, 0]])
    loss = aggregate(values, mask, mode, horizon=1)
    loss.backward()
    assert loss.item() == 1.0
    assert values.grad.tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(3, 2), (0, 2), (3, 0), (0, 0)])
def test_nothing_counted_gives_zero_with_a_graph(mode: Aggregation, shape: tuple[int, int]) -> None:
    values = torch.ones(shape, requires_grad=True)
    loss = aggregate(values, torch.zeros(shape), mode)
    loss.backward()
    assert loss.item() == 0.0
    assert values.grad.abs().sum() == 0


def test_the_horizon_is_the_width_unless_given() -> None:
    values, mask = torch.ones(2, 4), torch.ones(2, 4)
    assert aggregate(values, mask, "seq_mean_token_sum_norm").item() == 1.0
    assert aggregate(values, mask, "seq_mean_token_sum_norm", horizon=8).item() == 0.5


def test_half_precision_is_summed_in_float32() -> None:
    values = torch.full((1, 4096), 0.1, dtype=torch.bfloat16)
    assert masked_sum(values, torch.ones(1, 4096)).item() == pytest.approx(4096 * values[0, 0].item(), rel=1e-5)


def test_an_unknown_mode_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="token_mean, seq_mean_token_sum"):
        aggregate(torch.zeros(1, 1), torch.ones(1, 1), "mean")  # type: ignore[arg-type]
