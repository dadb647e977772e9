"""Oracles with their inputs and error bounds, function by function."""

from __future__ import annotations

from collections.abc import Mapping

from harness.cases.functions import (
    advantages,
    corrections,
    distillation,
    from_hidden,
    log_probs,
    losses,
    policy_losses,
)
from harness.cases.functions.base import Function

HELD_BY_A_LAW = ("speculative.propose", "speculative.verify")
"""Functions that draw: what they do to a distribution is held to a law in harness/cases/draft_law.py, not to values."""

FUNCTIONS: Mapping[str, Function] = {
    name: function
    for module in (log_probs, from_hidden, advantages, policy_losses, losses, corrections, distillation)
    for name, function in module.FUNCTIONS.items()
}
