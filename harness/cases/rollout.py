"""Cases of the rollout layer: padding, sampling and what the engine says of what it sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases.base import Case, Context, require, require_finite
from harness.cases.logprob import require_log_probs
from harness.cases.tolerances import log_prob_error
from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.strategies import AGGREGATIONS, TOKENS, layouts, sample_of, train_samples
from harness.subjects.protocol import Capability, Generation, GenerationRequest, Layout, TrainSample

_CONTRACT = FailureClass.CONTRACT


class EmptySequence(Case):
    """A response may be empty, because it was aborted before its first token; nothing may stumble over it.

    Padding n tokens to length L gives int64 ids and mask of shape (1, L), the mask's sum is n, and what fills is the
    tokenizer's pad id (0 without one), for every n from 0. A train step in which any of the responses are empty has a
    finite loss and finite metrics; one in which all are empty moves no parameter.

    When it fails: the shrunk input has the shortest row that breaks it. A wrong shape or dtype with no tokens: an
    empty list was turned into a tensor without saying of what. NaN: a mean divided by no tokens. Parameters that
    move: momentum, weight decay or an auxiliary loss acted without a gradient of the batch.
    """

    id = "rollout.empty-sequence"
    origin = "verl#6675"
    axes = ("model", "algorithm")
    cover = "each"
    needs = frozenset({Capability.PADDING, Capability.UPDATE})
    other_classes = frozenset({FailureClass.NUMERICS_NAN})

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        @st.composite
        def batch(draw: st.DrawFn) -> dict[str, Any]:
            samples = draw(train_samples(most_rows=8, most_response=5))
            for sample in samples:
                sample["abort"] = draw(st.sampled_from(["before", "before", "midway", "no"]))
            if draw(st.booleans()):
                samples = [{**sample, "abort": "before"} for sample in samples]
            length = draw(st.integers(0, 8))
            pad_id = draw(st.sampled_from([None, 0, 7, 256]))
            token = st.one_of(TOKENS, st.just(pad_id or 0))  # a token may be what padding fills with
            return {
                "pad": {
                    "tokens": draw(st.one_of(st.just([]), st.lists(token, max_size=length))),
                    "length": length,
                    "side": draw(st.sampled_from(["right", "left"])),
                    "pad_id": pad_id,
                },
                "samples": samples,
                "aggregation": draw(st.sampled_from(AGGREGATIONS)),
            }

        return batch()

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        _require_padding(context, data["pad"])
        samples = [_aborted(fields) for fields in data["samples"]]
        how: dict[str, Any] = {
            "splits": [list(range(len(samples)))],
            "algorithm": {"aggregation": data["aggregation"]},
        }
        computed = context.subject.update(samples, apply=False, **how)
        require_finite(computed.loss, "the loss")
        for name, gradient in computed.gradients.items():
            require(
                bool(np.isfinite(gradient).all()),
                f"the gradient of {name} is not finite",
                failure_class=FailureClass.NUMERICS_NAN,
            )
        try:
            stepped = context.subject.update(samples, apply=True, **how)
        finally:
            context.subject.reset()
        for name, value in stepped.metrics.items():
            require_finite(value, name)
        require(
            stepped.parameters_finite,
            "a parameter is not finite after the step",
            failure_class=FailureClass.NUMERICS_NAN,
        )
        if not any(sample.response for sample in samples):
            require(
                stepped.parameter_change == 0,
                f"all responses are empty, and yet a parameter moved by {stepped.parameter_change:.2g}",
            )


def _require_padding(context: Context, pad: Mapping[str, Any]) -> None:
    tokens, length, pad_id = pad["tokens"], pad["length"], pad["pad_id"]
    padded = context.subject.pad(tokens, length=length, side=pad["side"], pad_id=pad_id)
    for name, array in (("ids", padded.ids), ("mask", padded.mask)):
        require(
            array.shape == (1, length),
            f"padding {len(tokens)} tokens: {name} has shape {array.shape}, not (1, {length})",
        )
        require(array.dtype == np.int64, f"padding {len(tokens)} tokens: {name} has dtype {array.dtype}, not int64")
    fill = 0 if pad_id is None else pad_id
    missing = length - len(tokens)
    left = missing if pad["side"] == "left" else 0
    ids = [fill] * left + tokens + [fill] * (missing - left)
    mask = [0] * left + [1] * len(tokens) + [0] * (missing - left)
    require(padded.ids[0].tolist() == ids, f"padded ids are {padded.ids[0].tolist()}, not {ids}")
    require(padded.mask[0].tolist() == mask, f"the mask is {padded.mask[0].tolist()}, not {mask}")


def _aborted(fields: Mapping[str, Any]) -> TrainSample:
    """The sample, cut where its generation was aborted."""
    sample = sample_of({key: value for key, value in fields.items() if key != "abort"})
    kept = {"before": 0, "midway": len(sample.response) // 2, "no": len(sample.response)}[fields["abort"]]
    return replace(
        sample,
        response=sample.response[:kept],
        mask=None if sample.mask is None else sample.mask[:kept],
        old_log_probs=None if sample.old_log_probs is None else sample.old_log_probs[:kept],
    )


class LogProbAgrees(Case):
    """The engine's log-prob of each sampled token is the trainer's, whatever temperature, filter, mates or padding.

    For requests in one order and in the other. Also: as many log-probs as tokens, no more tokens than asked for, and a
    stop exactly at the end id. That the draws themselves are equal is not asked: a draw near a boundary may flip.

    When it fails: the message names the request and the token. From the first token on: temperature on one side, or a
    log-prob taken after top-k or top-p. From the second on: cache or positions. Only with requests of other lengths,
    or only in one replica of several: padding, or answers that went to another request.
    """

    id = "rollout.logprob-agrees"
    origin = "vllm#48305, trl#6789, NeMo-RL#4243"
    axes = ("model", "engine", "topology")
    needs = frozenset({Capability.GENERATION, Capability.LOG_PROBS})
    failure_class = FailureClass.NUMERICS_DRIFT
    other_classes = frozenset({FailureClass.NUMERICS_NAN, FailureClass.CONTRACT})

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        @st.composite
        def batch(draw: st.DrawFn) -> dict[str, Any]:
            count = draw(st.integers(1, 5))
            prefix = draw(st.one_of(st.just([]), st.lists(TOKENS, min_size=2, max_size=6)))  # shared by some
            requests = [
                {
                    "prompt": draw(st.sampled_from([[], prefix])) + draw(st.lists(TOKENS, min_size=1, max_size=6)),
                    "seed": draw(st.integers(0, 2**31 - 1)),
                    "max_tokens": draw(st.integers(1, 6)),
                    "top_p": draw(st.sampled_from([1.0, 0.9, 0.3])),
                    "top_k": draw(st.sampled_from([0, 1, 8])),
                }
                for _ in range(count)
            ]
            return {
                "requests": requests,
                "temperature": draw(st.sampled_from([1.0, 0.6, 1.4])),
                "layout": draw(layouts(2 * count)),
            }

        return batch()

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        temperature = data["temperature"]
        requests = [
            GenerationRequest(**{**fields, "prompt": tuple(fields["prompt"])}, temperature=temperature)
            for fields in data["requests"]
        ]
        samples = [*context.subject.generate(requests), *context.subject.generate(requests[::-1])]
        labels = [f"request {index}" for index in range(len(requests))]
        labels += [f"{label}, asked from last to first" for label in reversed(labels)]
        requests += requests[::-1]
        require(
            len(samples) == len(requests), f"{len(requests)} requests, {len(samples)} samples", failure_class=_CONTRACT
        )
        _, _, end = context.subject.vocabulary()
        for label, request, sample in zip(labels, requests, samples, strict=True):
            _require_wellformed(label, request, sample, end=end)
        rows = [(request.prompt, sample.tokens) for request, sample in zip(requests, samples, strict=True)]
        layout = Layout(**{**data["layout"], "order": tuple(data["layout"]["order"])})
        layers, hidden = context.subject.depth()
        longest = max(len(prompt) + len(tokens) for prompt, tokens in rows) + layout.extra_padding
        error = log_prob_error(context.cell.dtype, layers=layers, hidden=hidden, length=longest)
        trained = context.subject.log_probs(rows, layout=layout, temperature=temperature)
        for label, sample, expected in zip(labels, samples, trained, strict=True):
            require_log_probs(
                f"{label}, engine against trainer",
                np.array(sample.log_probs),
                expected,
                error=error,
                response=sample.tokens,
            )


def _require_wellformed(label: str, request: GenerationRequest, sample: Generation, *, end: int | None) -> None:
    tokens = sample.tokens
    require(
        len(tokens) == len(sample.log_probs),
        f"{label}: {len(tokens)} tokens but {len(sample.log_probs)} log-probs",
        failure_class=_CONTRACT,
    )
    require(
        1 <= len(tokens) <= request.max_tokens,
        f"{label}: {len(tokens)} tokens where 1 to {request.max_tokens} were asked for",
        failure_class=_CONTRACT,
    )
    require(
        end is None or end not in tokens[:-1],
        f"{label} went on after its end id: {list(tokens)}",
        failure_class=_CONTRACT,
    )
    stopped = end is not None and tokens[-1] == end
    require(
        sample.finish_reason == ("stop" if stopped else "length"),
        f"{label} ended with {tokens[-1]} for the reason {sample.finish_reason}",
        failure_class=_CONTRACT,
    )


CASES: tuple[Case, ...] = (EmptySequence(), LogProbAgrees())
