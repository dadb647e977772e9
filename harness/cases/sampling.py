"""The case of the drawing step: temperature, top-k and top-p keep just the tokens that they should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from harness.cases.base import Case, Context, require
from harness.cases.tolerances import log_prob_error
from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.strategies import TOKENS
from harness.subjects.protocol import Capability, GenerationRequest, Layout

_DRAWS = 160
_MISSED = 1e-9  # chance that a sound sampler leaves a kept token undrawn, below which its absence is a failure


class KeepsItsSet(Case):
    """What is drawn under top-k and top-p is the exact set of tokens that they keep, and the likeliest when k is 1.

    The whole distribution of the next token is asked for, log-prob by log-prob. Holtzman et al., arXiv:1904.09751: the
    smallest set of likeliest tokens with at least top-p of the mass that top-k left. Many seeds then draw: nothing
    outside the set may come, and everything in it whose chance of never coming is below 1e-9 must.

    When it fails: the message names the token that came, or did not. One token too many or too few: a comparison that
    should include its bound, or not. A set that is right only without temperature: the order of the steps.
    """

    id = "rollout.sampling-keeps-its-set"
    origin = "vllm#48305"
    axes = ("engine",)  # what comes before the logits is the log-prob cases' business
    needs = frozenset({Capability.GENERATION, Capability.LOG_PROBS})
    failure_class = FailureClass.CONTRACT

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries(
            {
                "prompt": st.lists(TOKENS, min_size=1, max_size=6),
                "temperature": st.sampled_from([1.0, 0.5, 0.25]),
                "top_k": st.sampled_from([0, 1, 2, 3, 5, 12]),
                "top_p": st.sampled_from([1.0, 0.9, 0.5, 0.04]),
                "seed": st.integers(0, 2**30),
            }
        )

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        assume(data["top_k"] > 0 or data["top_p"] < 0.05)  # of a whole vocabulary no number of draws sees every token
        size, _, _ = context.subject.vocabulary()
        prompt = tuple(data["prompt"])
        every = [(prompt, (token,)) for token in range(size)]
        told = context.subject.log_probs(every, layout=Layout(), temperature=data["temperature"])
        log_probs = np.array([row[0] for row in told])
        layers, hidden = context.subject.depth()
        error = log_prob_error(context.cell.dtype, layers=layers, hidden=hidden, length=len(prompt) + 1)
        surely, perhaps = kept_tokens(log_probs, top_k=data["top_k"], top_p=data["top_p"], error=error)
        drawn = {
            generation.tokens[0]
            for generation in context.subject.generate(
                [
                    GenerationRequest(
                        prompt=prompt,
                        seed=data["seed"] + index,
                        max_tokens=1,
                        temperature=data["temperature"],
                        top_k=data["top_k"],
                        top_p=data["top_p"],
                    )
                    for index in range(_DRAWS)
                ]
            )
        }
        banned = drawn - surely - perhaps
        settings = f"top_k {data['top_k']}, top_p {data['top_p']}, temperature {data['temperature']}"
        require(
            not banned,
            f"{settings}: token {min(banned, default=0)} was drawn; they keep {sorted(surely | perhaps)}",
        )
        kept = sorted(surely | perhaps)
        shares = np.exp(log_probs[kept] - log_probs[kept].max())
        shares /= shares.sum()
        due = {token for token, share in zip(kept, shares, strict=True) if (1 - share) ** _DRAWS < _MISSED}
        absent = (due & surely) - drawn
        require(
            not absent,
            f"{settings}: token {min(absent, default=0)} is kept and never came in {_DRAWS} draws",
        )


def kept_tokens(log_probs: np.ndarray, *, top_k: int, top_p: float, error: float) -> tuple[set[int], set[int]]:
    """Tokens that are kept for certain, and those of which rounding of the log-probs `(V,)` decides.

    Where the least likely token kept and the likeliest left out are within twice the error, so are they and all like
    them; and what a mass that is off by as much would bring in or leave out.
    """
    plain = _kept(log_probs, top_k=top_k, top_p=top_p)
    edge = min(log_probs[token] for token in plain)
    outside = max((log_probs[token] for token in range(len(log_probs)) if token not in plain), default=-np.inf)
    undecided = set()
    if edge - outside <= 2 * error:
        undecided = {int(token) for token in np.flatnonzero(np.abs(log_probs - edge) <= 2 * error)}
    if top_p < 1:
        for factor in (1 - 4 * error, 1 + 4 * error):
            undecided |= _kept(log_probs, top_k=top_k, top_p=top_p * factor) ^ plain
    return plain - undecided, undecided


def _kept(log_probs: np.ndarray, *, top_k: int, top_p: float) -> set[int]:
    order = np.argsort(-log_probs, kind="stable")
    order = order[:top_k] if top_k > 0 else order
    mass = np.exp(log_probs[order])
    inside = (np.cumsum(mass) - mass < top_p * mass.sum()) | (np.arange(len(order)) == 0)
    return {int(token) for token in order[inside]}


CASES: tuple[Case, ...] = (KeepsItsSet(),)
