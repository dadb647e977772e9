from __future__ import annotations

import pytest
import torch

from reference_trainer.algorithms.groups import degenerate_groups, keep_informative, rows_by_group


def test_degenerate_groups_are_counted() -> None:
    scores = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5])
    assert degenerate_groups(scores, ["a", "a", "b", "b", "c"]) == 2  # a, and c that is alone
    assert degenerate_groups(torch.zeros(0), []) == 0


def test_rows_of_informative_groups_are_kept_in_order() -> None:
    scores = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 7.0])
    names = ["same", -5, "same", (1, "x"), -5, (1, "x")]
    assert keep_informative(scores, names) == [1, 3, 4, 5]


def test_a_group_whose_ends_agree_may_still_differ_within() -> None:
    assert keep_informative(torch.tensor([1.0, 0.0, 1.0]), ["a"] * 3) == [0, 1, 2]


def test_what_is_kept_is_what_has_an_advantage() -> None:
    scores, names = torch.tensor([0.1, 0.1, 0.1, 0.1 + 1e-7, 3.0]), ["a", "a", "b", "b", "c"]
    kept = keep_informative(scores, names)
    assert kept == [2, 3]
    assert degenerate_groups(scores[kept], [names[row] for row in kept]) == 0


def test_nothing_is_kept_of_nothing() -> None:
    assert keep_informative(torch.zeros(0), []) == []


def test_a_tensor_of_names_groups_by_value() -> None:
    assert rows_by_group(torch.zeros(3), torch.tensor([10**15, -1, 10**15])) == [[0, 2], [1]]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 scores but 1 group"):
        rows_by_group(torch.zeros(3), ["a"])
