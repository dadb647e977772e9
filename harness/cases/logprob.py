"""Cases of the log-prob pass: a token's log-prob belongs to its sequence, not to how the batch was laid out or cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases.base import Case, Context, require
from harness.cases.functions.from_hidden import head_inputs
from harness.cases.loss import require_matches_oracle
from harness.cases.tolerances import DTYPES, log_prob_error
from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.strategies import layouts, rows_of_tokens, splits
from harness.subjects.protocol import Capability, HeadSize, Layout, TrainSample

_ALONE = Layout(rows_per_batch=1)


class LayoutInvariant(Case):
    """A token's log-prob is the same alone and unpadded, and in a batch padded left or right, in any order and size.

    Where the prompt ends is layout too: a response whose first tokens are counted to the prompt keeps its log-probs.
    And where the old log-probs are those of the policy itself, before any update, the ratio is 1: the surrogate's
    gradient is then that of plain policy gradient, nothing is clipped and the approximate KL is 0.

    When it fails: the shrunk input has one row or two and the layout that breaks it. Left padding alone: look at
    position ids, at the attention mask, and at recurrent states that read padding. Order or size: look at what one
    row's values can reach of another's. Only with tokens moved into the prompt: the prompt is not attended to.
    """

    id = "logprob.layout-invariant"
    origin = "verl#6345, verl#6846, verl#6268"
    axes = ("model",)
    needs = frozenset({Capability.LOG_PROBS, Capability.UPDATE})
    failure_class = FailureClass.NUMERICS_DRIFT
    other_classes = frozenset({FailureClass.NUMERICS_NAN, FailureClass.CONTRACT})

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        @st.composite
        def batch(draw: st.DrawFn) -> dict[str, Any]:
            rows = draw(rows_of_tokens(most_rows=4, most_response=8))
            return {
                "rows": rows,
                "layout": draw(layouts(len(rows))),
                "temperature": draw(st.sampled_from([1.0, 0.7])),
                "into_prompt": draw(st.integers(0, 4)),
                "splits": draw(splits(len(rows))),
            }

        return batch()

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        rows = [(tuple(prompt), tuple(response)) for prompt, response in data["rows"]]
        layout = Layout(**{**data["layout"], "order": tuple(data["layout"]["order"])})
        alone = context.subject.log_probs(rows, layout=_ALONE, temperature=data["temperature"])
        laid_out = context.subject.log_probs(rows, layout=layout, temperature=data["temperature"])
        layers, hidden = context.subject.depth()
        longest = max(len(prompt) + len(response) for prompt, response in rows) + layout.extra_padding
        error = log_prob_error(context.cell.dtype, layers=layers, hidden=hidden, length=longest)
        for index, (expected, got) in enumerate(zip(alone, laid_out, strict=True)):
            require_log_probs(f"row {index}", got, expected, error=error, response=rows[index][1])
        moved = [
            (prompt + response[: data["into_prompt"]], response[data["into_prompt"] :]) for prompt, response in rows
        ]
        tails = context.subject.log_probs(moved, layout=_ALONE, temperature=data["temperature"])
        for index, (whole, tail) in enumerate(zip(alone, tails, strict=True)):
            require_log_probs(
                f"row {index} with {data['into_prompt']} tokens moved into its prompt",
                tail,
                whole[data["into_prompt"] :],
                error=error,
                response=moved[index][1],
            )
        self._require_ratio_one(context, rows, data["splits"], error=error)

    def _require_ratio_one(
        self, context: Context, rows: list[tuple[tuple[int, ...], tuple[int, ...]]], parts: Any, *, error: float
    ) -> None:
        samples = [
            TrainSample(prompt=prompt, response=response, score=float(index), group=0)
            for index, (prompt, response) in enumerate(rows)
        ]
        metrics = context.subject.update(samples, splits=parts, apply=False).metrics
        for name in ("clip_fraction", "approx_kl"):
            value = metrics.get(name, 0.0)
            require(
                abs(value) <= error**2,
                f"{name} is {value:.3g} before any update, where the ratio is 1 and it is 0; "
                f"rounding explains {error**2:.1g}",
            )


def require_log_probs(
    label: str, got: np.ndarray, expected: np.ndarray, *, error: float, response: tuple[int, ...]
) -> None:
    """Require one finite log-prob for each response token, each within `error` of the expected one."""
    require(
        got.shape == (len(response),),
        f"{label}: {len(response)} response tokens but log-probs of shape {got.shape}",
        failure_class=FailureClass.CONTRACT,
    )
    require(
        bool(np.isfinite(got).all()),
        f"{label}: log-probs {got.tolist()} are not all finite",
        failure_class=FailureClass.NUMERICS_NAN,
    )
    away = np.abs(got - expected)
    if not (away <= error).all():
        worst = int(away.argmax())
        require(
            False,
            f"{label}, token {worst} (id {response[worst]}): log-prob {got[worst]:.6f}, expected "
            f"{expected[worst]:.6f}: {away[worst]:.2g} apart, rounding explains {error:.1g}",
        )


class ChunkedEqualsDense(Case):
    """Log-probs and entropies from hidden states in chunks are those of the whole, and hold a chunk of logits alone.

    Values and the gradients of hidden states and head, for every chunk size from 1 to one more than there are
    positions, none at all too, in every floating type, for logits of 1e4, ties and tensors that are not contiguous. The
    bytes alive above the inputs stay within a few chunks of logits and a few gradients of the head, without gradients
    and in training apart: plain autograd saves every chunk, so that a chunked forward pass alone saves nothing.

    When it fails: only with a last chunk shorter than the others, look at where it is cut. Off by 1e-2 in float32: a
    sum over the vocabulary was made in half precision. Bytes that grow with positions × vocabulary in training alone:
    what a chunk makes on the way is kept for the backward pass and not computed again.
    """

    id = "logprob.chunked-equals-dense"
    origin = "verl#6593, verl#6704"
    axes = ()
    needs = frozenset({Capability.FUNCTIONS, Capability.HEAD_BYTES})
    failure_class = FailureClass.NUMERICS_DRIFT
    other_classes = frozenset({FailureClass.NUMERICS_NAN, FailureClass.CONTRACT})
    examples = 50

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        @st.composite
        def call(draw: st.DrawFn) -> dict[str, Any]:
            drawn = draw(head_inputs(variants=("chunked", "fused"), most_rows=9, most_tokens=8))
            bytes_of = {
                "chunk": draw(st.integers(1, 4)),
                "rest": draw(st.sampled_from([0, 1])),
                "dtype": draw(st.sampled_from(["float32", "bfloat16"])),
                "training": draw(st.booleans()),
            }
            return {"function": _FROM_HIDDEN, "dtype": draw(st.sampled_from(DTYPES)), **drawn, "bytes_of": bytes_of}

        return call()

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        require(
            _FROM_HIDDEN in context.subject.function_names(),
            f"the subject names no function {_FROM_HIDDEN}",
            failure_class=FailureClass.CONTRACT,
        )
        require_matches_oracle(context.subject, data)
        how = data["bytes_of"]
        variant, width = data["settings"]["variant"], 2 if how["dtype"] == "bfloat16" else 4
        size = HeadSize(positions=64 * how["chunk"] + how["rest"], hidden=4, vocabulary=2048, chunk=how["chunk"])
        held = context.subject.head_bytes(variant, size, dtype=how["dtype"], training=how["training"])
        allowed = most_bytes(size, width=width, training=how["training"])
        passes = "forward and backward" if how["training"] else "forward without gradients"
        require(
            held <= allowed,
            f"{variant}, {passes}, holds {held} bytes above its inputs for {size.positions} positions, a vocabulary of "
            f"{size.vocabulary} and chunks of {size.chunk}; a chunk's logits and the head's gradient explain {allowed}",
            failure_class=FailureClass.CONTRACT,
        )


_FROM_HIDDEN = "log_probs.from_hidden"


def most_bytes(size: HeadSize, *, width: int, training: bool) -> int:
    """What a pass may hold when it holds one chunk's logits; it does not grow with positions × vocabulary.

    Sixteen numbers of float32 for each of a chunk's logits (the steps from a logit to its gradient); three gradients of
    the head (the sum, a chunk's part, and their sum); for each position its hidden state, gradient and a product of
    them in float32, and sixteen results.
    """
    logits = 16 * 4 * size.chunk * size.vocabulary
    positions = size.positions * (3 * 4 * size.hidden + 16 * 8)
    return logits + positions + (3 * width * size.vocabulary * size.hidden if training else 0)


CASES: tuple[Case, ...] = (LayoutInvariant(), ChunkedEqualsDense())
