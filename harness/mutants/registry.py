"""Every mutant the harness knows. Free of torch at import: a mutant loads what it breaks when it is installed."""

from __future__ import annotations

from functools import cache

from harness.mutants import (
    advantages,
    drafts,
    logprob,
    loss,
    policy_losses,
    rollout,
    sampling,
    sockets,
    training,
    update,
)
from harness.mutants.base import Mutant

_MODULES = (rollout, sampling, drafts, sockets, loss, advantages, policy_losses, update, logprob, training)


@cache
def all_mutants() -> dict[str, Mutant]:
    """Mutants by name, in the order of the cases that must kill them."""
    mutants: dict[str, Mutant] = {}
    for module in _MODULES:
        for mutant in module.MUTANTS:
            if mutant.name in mutants:
                raise ValueError(f"two mutants are called {mutant.name}")
            if not mutant.name.startswith(mutant.case + ":"):
                raise ValueError(f"mutant {mutant.name} should be called {mutant.case}:…")
            mutants[mutant.name] = mutant
    return mutants
