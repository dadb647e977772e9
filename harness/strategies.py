"""Hypothesis strategies that the cases share: plain JSON, that is lists, numbers, and names for specials."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from hypothesis import strategies as st

from harness.subjects.protocol import TrainSample

AGGREGATIONS = ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")
GARBAGE = ("0", "nan", "inf", "-inf", "1e30")  # what may lie in a masked cell


def numbers(bound: float, *, width: Literal[16, 32] = 32) -> st.SearchStrategy[float]:
    """Finite numbers of at most `bound`, none so small that it loses digits."""
    return st.floats(-bound, bound, allow_nan=False, allow_infinity=False, allow_subnormal=False, width=width)


def table(rows: int, columns: int, elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    """Nested lists `(rows, columns)`."""
    row = st.lists(elements, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


def masks(rows: int, columns: int) -> st.SearchStrategy[list[list[int]]]:
    """Masks `(rows, columns)` of 0 and 1: full, with holes, with empty rows, all zero."""
    full = st.just([1] * columns)
    empty = st.just([0] * columns)
    holes = st.lists(st.integers(0, 1), min_size=columns, max_size=columns)
    row = st.one_of(full, holes, holes, empty)
    mixed = st.lists(row, min_size=rows, max_size=rows)
    return st.one_of(mixed, mixed, mixed, st.just([[0] * columns] * rows))


def shapes(rows: int, columns: int) -> st.SearchStrategy[tuple[int, int]]:
    """From no rows, and no columns, up to `(rows, columns)`; most often neither is 0."""
    some = st.tuples(st.integers(1, rows), st.integers(1, columns))
    return st.one_of(some, some, some, st.tuples(st.integers(0, rows), st.integers(0, columns)))


TOKENS = st.one_of(st.integers(0, 261), st.integers(265, 319), st.sampled_from([256, 258, 0, 97]))
"""Ids below the smallest vocabulary in use; the pad and end ids of a byte-level one come up often, as do 0 and "a".

The byte-level one's marks of an image, 262 to 264, are left out: without an image they are no input.
"""


def rows_of_tokens(*, most_rows: int, most_response: int) -> st.SearchStrategy[list[list[list[int]]]]:
    """Rows `[prompt, response]`, at least one; a prompt has a token, a response may have none."""
    row = st.tuples(
        st.lists(TOKENS, min_size=1, max_size=8),
        st.one_of(st.lists(TOKENS, min_size=1, max_size=most_response), st.just([])),
    ).map(list)
    return st.lists(row, min_size=1, max_size=most_rows)


@st.composite
def train_samples(draw: st.DrawFn, *, most_rows: int, most_response: int) -> list[dict[str, Any]]:
    """The fields of `TrainSample`s, at least one; masks have holes, old log-probs are given or left to the subject.

    Given ones lie around the -5.8 of a uniform choice among 320 tokens, so that some ratios are clipped.
    """
    rows = draw(rows_of_tokens(most_rows=most_rows, most_response=most_response))
    old = draw(st.sampled_from([None, st.floats(-6.5, -5.0, width=16)]))
    samples = []
    for prompt, response in rows:
        count = len(response)
        samples.append(
            {
                "prompt": prompt,
                "response": response,
                "score": draw(st.sampled_from([1.0, 0.0, 0.5, -2.0])),
                "group": draw(st.integers(0, 2)),
                "mask": draw(st.one_of(st.none(), st.lists(st.integers(0, 1), min_size=count, max_size=count))),
                "old_log_probs": draw(st.lists(old, min_size=count, max_size=count)) if old is not None else None,
            }
        )
    return samples


def sample_of(fields: dict[str, Any]) -> TrainSample:
    """A drawn sample, as the subject takes it."""
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return TrainSample(**plain)


@st.composite
def layouts(draw: st.DrawFn, rows: int) -> dict[str, Any]:
    """The fields of a `Layout` for so many rows."""
    return {
        "side": draw(st.sampled_from(["right", "left"])),
        "extra_padding": draw(st.integers(0, 8)),
        "rows_per_batch": draw(st.integers(0, rows)),
        "order": draw(st.permutations(range(rows))),
    }


@st.composite
def splits(draw: st.DrawFn, rows: int) -> list[list[int]]:
    """Every row in one of several micro-batches, in any order; some may be empty."""
    order = draw(st.permutations(range(rows)))
    cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=1, max_size=4)))
    edges = [0, *cuts, rows]
    return [order[start:end] for start, end in pairwise(edges)]
