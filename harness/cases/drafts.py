"""Cases of speculative decoding: drafts may cost time or save it, and never change what is sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases.base import Case, Context, require
from harness.cases.draft_law import require_lossless
from harness.cases.tolerances import log_prob_error
from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.strategies import TOKENS
from harness.subjects.protocol import Capability, Generation, GenerationRequest, Layout

_DRIFT = FailureClass.NUMERICS_DRIFT
# Of the request to an equal drafter: several rounds, and a distribution that tells what stands in a cache.
_LONG, _COLD = 20, 0.1


class DraftsAreLossless(Case):
    """What is sampled with drafts has the distribution of what is sampled without.

    The law: for target and drafter over a few tokens, the joint distribution of the emitted tokens is enumerated
    through the functions of the subject, integrating over the uniform numbers exactly, and is the target's; a draft is
    accepted as often as can be; the log-prob told is the target's. The engine: greedy output with the cell's drafter is
    that without; log-probs are the trainer's; no more drafts are accepted than were made; a drafter equal to its target
    accepts all, at the number of target passes that this makes.

    When it fails: a wrong law names the tokens and both probabilities: acceptance, the distribution a rejected draft is
    replaced from, the free token behind the last draft, or a filter on one side only. A greedy difference or a wrong
    log-prob from the second round on: the target's cache kept rejected drafts. An equal drafter that is refused: its
    own cache did, or its weights are not the target's.
    """

    id = "rollout.drafts-are-lossless"
    origin = "arXiv:2211.17192, arXiv:2302.01318; vllm#6552"
    axes = ("model", "engine")
    needs = frozenset({Capability.FUNCTIONS, Capability.GENERATION, Capability.LOG_PROBS, Capability.DRAFTS})
    other_classes = frozenset({_DRIFT})
    seconds = 120.0

    def applies(self, cell: Cell) -> str:
        drafter = cell.settings.get("model", {}).get("drafter")
        return "" if drafter else "the cell's model has no drafter (model.drafter)"

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        law = st.fixed_dictionaries(
            {
                "vocabulary": st.integers(2, 4),
                "drafts": st.integers(1, 2),
                "quality": st.sampled_from(["equal", "near", "random"]),
                "temperature": st.sampled_from([1.0, 0.6, 1.4, 0.0]),
                "top_k": st.integers(0, 3),
                "top_p": st.sampled_from([1.0, 0.8]),
                "seed": st.integers(0, 2**31 - 1),
            }
        )
        request = st.fixed_dictionaries(
            {
                "prompt": st.lists(TOKENS, min_size=1, max_size=6),
                "seed": st.integers(0, 2**31 - 1),
                "max_tokens": st.integers(1, 10),
            }
        )
        engine = st.fixed_dictionaries(
            {
                "requests": st.lists(request, min_size=1, max_size=3),
                "draft_tokens": st.integers(1, 5),
                "temperature": st.sampled_from([1.0, 0.7]),
                "top_k": st.sampled_from([0, 8]),
            }
        )
        return st.one_of(st.fixed_dictionaries({"law": law}), st.fixed_dictionaries({"engine": engine}))

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        if "law" in data:
            require_lossless(context.subject, data["law"])
            return
        engine = data["engine"]
        asked = [{**fields, "prompt": tuple(fields["prompt"])} for fields in engine["requests"]]
        drafts = engine["draft_tokens"]
        greedy = [GenerationRequest(**fields, temperature=0.0, draft_tokens=0) for fields in asked]
        with_drafts = [GenerationRequest(**fields, temperature=0.0, draft_tokens=drafts) for fields in asked]
        plain, drafted = (context.subject.generate(requests) for requests in (greedy, with_drafts))
        for index, (request, one, other) in enumerate(zip(greedy, plain, drafted, strict=True)):
            _require_same_greedy(context, f"request {index}", request, one, other)
        sampling = {"temperature": engine["temperature"], "top_k": engine["top_k"], "draft_tokens": drafts}
        requests = [GenerationRequest(**fields, **sampling) for fields in asked]
        sampled = context.subject.generate(requests)
        for index, (request, sample) in enumerate(
            [*enumerate_pairs(with_drafts, drafted), *enumerate_pairs(requests, sampled)]
        ):
            _require_counts(f"request {index % len(asked)}", request, sample)
        _require_log_probs(context, with_drafts, drafted, temperature=1.0)
        _require_log_probs(context, requests, sampled, temperature=engine["temperature"])
        _require_equal_drafter_accepted(context, asked[0], drafts=drafts)


def enumerate_pairs(
    requests: list[GenerationRequest], samples: list[Generation]
) -> list[tuple[GenerationRequest, Generation]]:
    require(len(requests) == len(samples), f"{len(requests)} requests, {len(samples)} samples")
    return list(zip(requests, samples, strict=True))


def _error(context: Context, rows: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> float:
    layers, hidden = context.subject.depth()
    length = max(len(prompt) + len(tokens) for prompt, tokens in rows)
    return log_prob_error(context.cell.dtype, layers=layers, hidden=hidden, length=length)


def _require_same_greedy(
    context: Context, label: str, request: GenerationRequest, plain: Generation, drafted: Generation
) -> None:
    """The same tokens, but for two that are equally likely up to rounding."""
    for place, (one, other) in enumerate(zip(plain.tokens, drafted.tokens, strict=False)):
        if one == other:
            continue
        rows = [(request.prompt, (*plain.tokens[:place], token)) for token in (one, other)]
        found = context.subject.log_probs(rows, layout=Layout(), temperature=1.0)
        gap = abs(float(found[0][-1] - found[1][-1]))
        require(
            gap <= 2 * _error(context, rows),
            f"{label}, greedy: token {place} is {one} without drafts and {other} with them, their log-probs differ "
            f"by {gap:.2g}",
        )
        return  # from a tie on both are right
    require(
        len(plain.tokens) == len(drafted.tokens),
        f"{label}, greedy: {len(plain.tokens)} tokens without drafts, {len(drafted.tokens)} with them",
    )


def _require_counts(label: str, request: GenerationRequest, sample: Generation) -> None:
    count = len(sample.tokens)
    require(
        1 <= count <= request.max_tokens and len(sample.log_probs) == count,
        f"{label}: {count} tokens and {len(sample.log_probs)} log-probs where {request.max_tokens} were asked for",
    )
    told = f"{label}: drafts at each place {list(sample.drafted)}, accepted {list(sample.accepted)}"
    require(len(sample.drafted) == len(sample.accepted) == request.draft_tokens, told)
    require(all(0 <= yes <= made for yes, made in zip(sample.accepted, sample.drafted, strict=True)), told)
    if request.max_tokens > 2 and count > 1:
        require(sample.drafted[0] > 0, f"{told}: nothing was drafted for {count} tokens")


def _require_log_probs(
    context: Context, requests: list[GenerationRequest], samples: list[Generation], *, temperature: float
) -> None:
    rows = [(request.prompt, sample.tokens) for request, sample in zip(requests, samples, strict=True)]
    error = _error(context, rows)
    trained = context.subject.log_probs(rows, layout=Layout(), temperature=temperature)
    for index, (sample, expected) in enumerate(zip(samples, trained, strict=True)):
        gaps = np.abs(np.array(sample.log_probs) - expected)
        place = int(gaps.argmax())
        require(
            bool(gaps[place] <= error),
            f"request {index}, with drafts: the log-prob of token {place} is {sample.log_probs[place]:.6g} and "
            f"{expected[place]:.6g} by the trainer",
            failure_class=_DRIFT,
        )


def _require_equal_drafter_accepted(context: Context, fields: Mapping[str, Any], *, drafts: int) -> None:
    request = GenerationRequest(
        **{**fields, "max_tokens": _LONG}, temperature=_COLD, draft_tokens=drafts, equal_drafter=True
    )
    sample = context.subject.generate([request])[0]
    made, accepted = sum(sample.drafted), sum(sample.accepted)
    # Accepted with min(1, p / q), where p and q differ by rounding alone.
    spared = int(3 * made * _error(context, [(request.prompt, sample.tokens)]) / _COLD)
    require(
        made - accepted <= spared,
        f"a drafter equal to its target: {accepted} of {made} drafts accepted, at each place {list(sample.accepted)} "
        f"of {list(sample.drafted)}",
    )
    if made == accepted:
        passes = 1 + math.ceil((len(sample.tokens) - 1) / (drafts + 1))
        require(
            sample.target_forwards == passes,
            f"a drafter equal to its target: {sample.target_forwards} passes of the target for {len(sample.tokens)} "
            f"tokens with {drafts} drafts each; {passes} are enough",
        )


CASES: tuple[Case, ...] = (DraftsAreLossless(),)
