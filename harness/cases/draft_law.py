"""The exact law of speculative sampling over a small vocabulary, through a subject's own functions.

Drafts, acceptance and choices are piecewise constant in their uniform numbers. With the breakpoints of the right
answer, one number from the middle of each piece, weighted by its length, integrates the right functions exactly; wrong
ones have another integral.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.cases.base import require
from harness.cases.oracles.sampling import own_choices, sampled
from harness.subjects.protocol import Subject

_CLOSE = 1e-9  # of probabilities in float64 after a dozen operations
Context = tuple[int, ...]
Law = dict[Context, float]


def require_lossless(subject: Subject, data: Mapping[str, Any]) -> None:
    """For every number of tokens that a round may be cut to, and drafts of whatever quality."""
    vocabulary, drafts = data["vocabulary"], data["drafts"]
    target = _logits(data, drafts=drafts, of="target")
    draft = _logits(data, drafts=drafts - 1, of="draft")
    filters = {name: data[name] for name in ("temperature", "top_k", "top_p")}
    p = {context: sampled(logits, **filters) for context, logits in target.items()}
    q = {context: sampled(logits, **filters) for context, logits in draft.items()}
    proposals = _proposals(subject, draft, q, filters)
    rows = list(_rows(proposals, p, q, vocabulary=vocabulary, drafts=drafts))
    verdict = _verdicts(subject, rows, target, filters)
    expected = _by_target((), drafts + 1, p)
    for cut in range(drafts + 1):
        law: Law = {}
        for row, accepted, tokens in zip(rows, verdict["accepted"], verdict["tokens"], strict=True):
            emitted = tuple(int(token) for token in tokens[: min(int(accepted), cut) + 1])
            for rest, share in _by_target(emitted, drafts + 1 - len(emitted), p).items():
                law[rest] = law.get(rest, 0.0) + row["weight"] * share
        for tokens, probability in expected.items():
            found = law.get(tokens, 0.0)
            require(
                abs(found - probability) <= _CLOSE,
                f"tokens {list(tokens)} come with probability {found:.6g} by speculative sampling and "
                f"{probability:.6g} by the target, when a round emits at most {cut + 1}",
            )
        require(abs(sum(law.values()) - 1) <= _CLOSE, f"the emitted tokens have total probability {sum(law.values())}")
    _require_acceptance(rows, verdict, p, q)
    _require_log_probs(rows, verdict, target, temperature=filters["temperature"] or 1.0)


def _logits(data: Mapping[str, Any], *, drafts: int, of: str) -> dict[Context, np.ndarray]:
    """By what stands before, from nothing to `drafts` tokens."""
    spread = {"equal": 0.0, "near": 0.3, "random": 3.0}[data["quality"]]
    answers = {}
    for length in range(drafts + 1):
        for context in itertools.product(range(data["vocabulary"]), repeat=length):
            shared = np.random.default_rng([data["seed"], length, *context])
            logits = shared.normal(size=data["vocabulary"]) * 1.5
            noise = shared.normal(size=data["vocabulary"]) * spread
            answers[context] = logits + (noise if of == "draft" else 0.0)
    return answers


def _pieces(*distributions: np.ndarray) -> list[tuple[float, float]]:
    """Middle and length of each piece of [0, 1) between the cumulated probabilities."""
    edges = np.unique(np.concatenate([[0.0, 1.0], *(np.cumsum(one) / one.sum() for one in distributions)]))
    edges = edges[(edges >= 0) & (edges <= 1)]
    return [((low + high) / 2, high - low) for low, high in itertools.pairwise(edges) if high - low > 1e-12]


def _settings(filters: Mapping[str, Any], rows: int) -> dict[str, np.ndarray]:
    return {
        "temperature": np.full(rows, filters["temperature"], dtype=np.float64),
        "top_k": np.full(rows, filters["top_k"], dtype=np.int64),
        "top_p": np.full(rows, filters["top_p"], dtype=np.float64),
    }


def _proposals(
    subject: Subject, logits: Mapping[Context, np.ndarray], q: Mapping[Context, np.ndarray], filters: Mapping[str, Any]
) -> dict[Context, list[tuple[int, float, np.ndarray]]]:
    """For each context what the subject drafts, how often, and the distribution that it says it drew from."""
    asked = [(context, *piece) for context in logits for piece in _pieces(q[context])]
    answer = subject.function(
        "speculative.propose",
        {
            "logits": np.stack([logits[context] for context, _, _ in asked]),
            "uniforms": np.array([middle for _, middle, _ in asked]),
            **_settings(filters, len(asked)),
        },
        settings={},
    ).outputs
    found: dict[Context, list[tuple[int, float, np.ndarray]]] = {context: [] for context in logits}
    for (context, _, weight), token, said in zip(asked, answer["tokens"], answer["probabilities"], strict=True):
        found[context].append((int(token), weight, said))
    return found


def _rows(
    proposals: Mapping[Context, list[tuple[int, float, np.ndarray]]],
    p: Mapping[Context, np.ndarray],
    q: Mapping[Context, np.ndarray],
    *,
    vocabulary: int,
    drafts: int,
) -> Iterator[dict[str, Any]]:
    """Each combination of drafts and pieces, with its weight."""
    chains: list[tuple[Context, float, list[np.ndarray]]] = [((), 1.0, [])]
    for _ in range(drafts):
        chains = [
            ((*context, token), weight * share, [*said, one])
            for context, weight, said in chains
            for token, share, one in proposals[context]
        ]
    for context, weight, said in chains:
        before = [context[:place] for place in range(drafts)]
        accepts = [
            _pieces(np.array([ratio, 1 - ratio]))
            for ratio in (
                min(1.0, p[one][token] / q[one][token]) if q[one][token] else 0.0
                for one, token in zip(before, context, strict=True)
            )
        ]
        choices = _pieces(*(own_choices(p[one], q[one]) for one in before), p[context])
        for *steps, (choice, share) in itertools.product(*accepts, choices):
            yield {
                "drafts": context,
                "said": said,
                "accept": [middle for middle, _ in steps],
                "choice": choice,
                "weight": weight * share * float(np.prod([length for _, length in steps])),
            }


def _verdicts(
    subject: Subject, rows: list[dict[str, Any]], target: Mapping[Context, np.ndarray], filters: Mapping[str, Any]
) -> Mapping[str, np.ndarray]:
    places = len(rows[0]["drafts"]) + 1
    return subject.function(
        "speculative.verify",
        {
            "logits": np.stack([[target[row["drafts"][:place]] for place in range(places)] for row in rows]),
            "drafts": np.array([row["drafts"] for row in rows], dtype=np.int64),
            "draft_probabilities": np.stack([row["said"] for row in rows]),
            "accept_uniforms": np.array([row["accept"] for row in rows]),
            "choice_uniforms": np.array([[row["choice"]] * places for row in rows]),
            **_settings(filters, len(rows)),
        },
        settings={},
    ).outputs


def _by_target(before: Context, count: int, p: Mapping[Context, np.ndarray]) -> Law:
    """The target's law of `count` more tokens."""
    law: Law = {before: 1.0}
    for _ in range(count):
        law = {
            (*context, token): share * probability
            for context, share in law.items()
            for token, probability in enumerate(p[context].tolist())
        }
    return law


def _require_acceptance(
    rows: list[dict[str, Any]],
    verdict: Mapping[str, np.ndarray],
    p: Mapping[Context, np.ndarray],
    q: Mapping[Context, np.ndarray],
) -> None:
    """The first draft is accepted with probability Σ min(p, q), the most that any exact rule reaches."""
    found = sum(row["weight"] for row, accepted in zip(rows, verdict["accepted"], strict=True) if accepted > 0)
    best = float(np.minimum(p[()], q[()]).sum())
    require(
        abs(found - best) <= _CLOSE,
        f"the first draft is accepted with probability {found:.6g}; target and drafter overlap by {best:.6g}",
    )


def _require_log_probs(
    rows: list[dict[str, Any]],
    verdict: Mapping[str, np.ndarray],
    target: Mapping[Context, np.ndarray],
    *,
    temperature: float,
) -> None:
    for row, accepted, tokens, told in zip(
        rows, verdict["accepted"], verdict["tokens"], verdict["log_probs"], strict=True
    ):
        for place in range(int(accepted) + 1):
            token, logits = int(tokens[place]), target[row["drafts"][:place]] / temperature
            right = float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
            require(
                abs(float(told[place]) - right) <= _CLOSE,
                f"the log-prob of token {token} at place {place} is told as {float(told[place]):.6g}; the target's, "
                f"before top-k and top-p, is {right:.6g}",
            )
