"""Cases of the log-prob pass: a token's log-prob belongs to its sequence, not to how the batch was laid out."""

from __future__ import annotations

from harness.cases.base import Case
from harness.subjects.protocol import Capability


class LayoutInvariant(Case):
    """Left or right padding, extra padding, batch order and batch size leave each token's log-prob as it is."""

    id = "logprob.layout-invariant"
    origin = "verl#6345, verl#6846, verl#6268"
    axes = ("model",)
    needs = frozenset({Capability.LOG_PROBS, Capability.UPDATE})


CASES: tuple[Case, ...] = (LayoutInvariant(),)
