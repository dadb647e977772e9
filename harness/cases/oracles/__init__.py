"""The mathematics of the PPO family in float64 numpy, written from the papers and not from any implementation.

Everything here is plain and slow on purpose: loops where the paper has indices. `(B, T)` is aligned with the response,
in a mask 1 counts; what is masked is never read.
"""

from __future__ import annotations

from harness.cases.oracles.advantages import gae, group_advantages, standardise
from harness.cases.oracles.log_probs import entropy, kl, log_softmax, token_log_probs
from harness.cases.oracles.losses import aggregation_weights, clipped_value_loss, ppo_clip

__all__ = [
    "aggregation_weights",
    "clipped_value_loss",
    "entropy",
    "gae",
    "group_advantages",
    "kl",
    "log_softmax",
    "ppo_clip",
    "standardise",
    "token_log_probs",
]
