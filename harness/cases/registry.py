"""Every case the harness knows. Free of torch at import, because planning needs it and must start at once."""

from __future__ import annotations

from functools import cache

from harness.cases import drafts, logprob, loss, rollout, sampling, sockets, training, update
from harness.cases.base import Case

_MODULES = (rollout, sampling, drafts, sockets, loss, update, logprob, training)


@cache
def all_cases() -> dict[str, Case]:
    """Cases by id, in the order of the catalogue."""
    cases: dict[str, Case] = {}
    for module in _MODULES:
        for case in module.CASES:
            if case.id in cases:
                raise ValueError(f"two cases are called {case.id}")
            cases[case.id] = case
    return cases
