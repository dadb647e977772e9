"""Rows that belong together: a group is told by identity, whatever its id, its size and the order of the rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch


def rows_by_group(scores: torch.Tensor, groups: Sequence[Hashable]) -> list[list[int]]:
    """The rows of each group, in order, for scores `(B,)`; groups in the order of their first row.

    Raises ValueError when scores and groups differ in length.
    """
    if isinstance(groups, torch.Tensor):
        groups = groups.tolist()  # a tensor's elements hash by object, each its own group
    if len(groups) != scores.shape[0]:
        raise ValueError(f"{scores.shape[0]} scores but {len(groups)} group names; give one a row")
    rows_of: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    return list(rows_of.values())


def keep_informative(scores: torch.Tensor, groups: Sequence[Hashable]) -> list[int]:
    """Rows, in order, of the groups whose scores `(B,)` are not all equal.

    Dynamic sampling, DAPO, arXiv:2503.14476, sec. 3.2: a group of equal scores has advantage 0 throughout and teaches
    nothing. A sample alone in its group is such a group.
    """
    return sorted(row for rows in rows_by_group(scores, groups) if not _all_equal(scores[rows]) for row in rows)


def degenerate_groups(scores: torch.Tensor, groups: Sequence[Hashable]) -> int:
    """Number of groups whose scores are all equal: they teach nothing."""
    return sum(_all_equal(scores[rows]) for rows in rows_by_group(scores, groups))


def _all_equal(scores: torch.Tensor) -> bool:
    return bool((scores == scores[0]).all())
