"""Estimators of KL(policy || reference) from the log-probs of sampled tokens.

Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html; with r = p_ref / p_policy:
k1 = -log r, k2 = (log r)² / 2, k3 = (r - 1) - log r. All are elementwise.
"""

from __future__ import annotations

from typing import Literal

import torch

from reference_trainer.algorithms.logprobs import at_least_float32

KlEstimator = Literal["k1", "k2", "k3", "abs"]

LOG_RATIO_BOUND = 20.0  # exp(20) = 4.9e8: beyond it only overflow is gained


def kl_k1(log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """-log r: unbiased, of either sign."""
    return at_least_float32(log_probs) - at_least_float32(reference)


def kl_abs(log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """|log r|: biased, never negative."""
    return kl_k1(log_probs, reference).abs()


def kl_k2(log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """(log r)² / 2: biased, with the gradient of the KL itself when sampled on policy."""
    return kl_k1(log_probs, reference).square() / 2


def kl_k3(
    log_probs: torch.Tensor, reference: torch.Tensor, *, log_ratio_bound: float = LOG_RATIO_BOUND
) -> torch.Tensor:
    """(r - 1) - log r: unbiased and never negative.

    By expm1, because exp(x) - 1 - x cancels to noise of either sign for small x. Convention: log r is clamped to
    ±`log_ratio_bound`, so an overflow gives a large finite value with gradient 0.
    """
    log_ratio = (-kl_k1(log_probs, reference)).clamp(-log_ratio_bound, log_ratio_bound)
    value = torch.expm1(log_ratio) - log_ratio
    return value.clamp(min=0.0)  # expm1 is right to an ulp of x, which near 0 is more than x² / 2


def kl_estimate(kind: KlEstimator, log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The named estimator, elementwise on `(B, T)`."""
    return {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3, "abs": kl_abs}[kind](log_probs, reference)


@torch.no_grad()
def kl_penalised_rewards(
    rewards: torch.Tensor, kl: torch.Tensor, mask: torch.Tensor, *, coefficient: float
) -> torch.Tensor:
    """reward - coefficient · KL of each token, all `(B, T)`; 0 where masked, and without a graph.

    Ziegler et al., "Fine-Tuning Language Models from Human Preferences", arXiv:1909.08593, eq. 2. A penalty within the
    reward is part of what the policy is told, not a term of its loss: nothing flows back through `kl`.
    """
    penalised = at_least_float32(rewards) - coefficient * at_least_float32(kl)
    return torch.where(mask.bool(), penalised, 0.0)
