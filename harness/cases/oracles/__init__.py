"""The mathematics of the PPO family in float64 numpy, written from the papers and not from any implementation.

Everything here is plain and slow on purpose: loops where the paper has indices. `(B, T)` is aligned with the response,
in a mask 1 counts; what is masked is never read.
"""

from __future__ import annotations

from harness.cases.oracles.advantages import (
    gae,
    group_advantages,
    informative_rows,
    reinforce_pp,
    remax,
    rloo,
    standardise,
)
from harness.cases.oracles.corrections import importance_weights, kl_penalised_rewards, overlong_penalty
from harness.cases.oracles.distillation import divergence
from harness.cases.oracles.from_hidden import log_probs_from_hidden
from harness.cases.oracles.log_probs import entropy, kl, log_softmax, token_log_probs
from harness.cases.oracles.losses import aggregation_weights, cispo, clipped_value_loss, dual_clip, gspo, ppo_clip

__all__ = [
    "aggregation_weights",
    "cispo",
    "clipped_value_loss",
    "divergence",
    "dual_clip",
    "entropy",
    "gae",
    "group_advantages",
    "gspo",
    "importance_weights",
    "informative_rows",
    "kl",
    "kl_penalised_rewards",
    "log_probs_from_hidden",
    "log_softmax",
    "overlong_penalty",
    "ppo_clip",
    "reinforce_pp",
    "remax",
    "rloo",
    "standardise",
    "token_log_probs",
]
