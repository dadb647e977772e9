from __future__ import annotations

import numpy as np
import torch

from reference_trainer.algorithms.mtp import mtp_loss


def test_the_loss_is_the_negative_log_prob_of_what_counts_in_value_and_gradient() -> None:
    rng = np.random.default_rng(0)
    q = rng.uniform(0.01, 1.0, size=(3, 5))
    mask = rng.random((3, 5)) < 0.5
    log_probs = torch.tensor(np.log(q), requires_grad=True)
    loss = mtp_loss(log_probs, torch.tensor(mask))
    np.testing.assert_allclose(loss.detach().numpy(), np.where(mask, -np.log(q), 0.0), rtol=1e-15)
    loss.sum().backward()
    assert log_probs.grad is not None
    np.testing.assert_array_equal(log_probs.grad.numpy(), np.where(mask, -1.0, 0.0))


def test_what_is_not_counted_reaches_nothing() -> None:
    log_probs = torch.tensor([[float("nan"), float("-inf"), -1.0]], requires_grad=True)
    loss = mtp_loss(log_probs, torch.tensor([[0, 0, 1]]))
    assert loss.tolist() == [[0.0, 0.0, 1.0]]
    loss.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[0.0, 0.0, -1.0]]


def test_no_rows_are_fine() -> None:
    assert mtp_loss(torch.zeros(0, 4), torch.zeros(0, 4)).shape == (0, 4)
