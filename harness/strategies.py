"""Hypothesis strategies that the cases share: plain JSON, that is lists, numbers, and names for specials."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from hypothesis import strategies as st

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


def token_lists(*, vocabulary: int, least: int, most: int) -> st.SearchStrategy[list[int]]:
    """Sequences of token ids."""
    return st.lists(st.integers(0, vocabulary - 1), min_size=least, max_size=most)


@st.composite
def splits(draw: st.DrawFn, rows: int) -> list[list[int]]:
    """Every row in one of several micro-batches, in any order; some may be empty."""
    order = draw(st.permutations(range(rows)))
    cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=1, max_size=4)))
    edges = [0, *cuts, rows]
    return [order[start:end] for start, end in pairwise(edges)]
