"""Oracles with their inputs and error bounds, function by function."""

from __future__ import annotations

from collections.abc import Mapping

from harness.cases.functions import advantages, log_probs, losses
from harness.cases.functions.base import Function

FUNCTIONS: Mapping[str, Function] = {**log_probs.FUNCTIONS, **advantages.FUNCTIONS, **losses.FUNCTIONS}
