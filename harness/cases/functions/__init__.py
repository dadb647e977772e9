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

FUNCTIONS: Mapping[str, Function] = {
    name: function
    for module in (log_probs, from_hidden, advantages, policy_losses, losses, corrections, distillation)
    for name, function in module.FUNCTIONS.items()
}
