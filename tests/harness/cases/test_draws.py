from __future__ import annotations

import sys
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

NUMBERS = st.fixed_dictionaries({"x": st.integers(), "y": st.floats(allow_nan=False, allow_infinity=False)})


def test_a_seed_draws_the_same_inputs_whatever_modules_are_loaded(
    judge_toy: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(seed: int) -> list[object]:
        seen: list[object] = []
        judge_toy(lambda context, data: seen.append(data), NUMBERS, seed=seed, examples=200)
        return seen

    before = drawn(3)
    path = tmp_path / "many_constants.py"
    path.write_text("\n".join(f"x{i} = {i * 7919 + 101}" for i in range(200)))
    module = types.ModuleType("many_constants")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "many_constants", module)
    assert drawn(3) == before
    assert drawn(4) != before


def test_inputs_are_no_variations_of_one_another(judge_toy: Callable[..., Any]) -> None:
    seen: list[Any] = []
    lists = st.fixed_dictionaries({"xs": st.lists(st.integers(0, 2**30), min_size=4, max_size=4)})
    judge_toy(lambda context, data: seen.append(tuple(data["xs"])), lists, examples=200)
    shared = sum(any(x == y for x, y in zip(one, two, strict=True)) for one, two in pairwise(seen))
    assert shared < 20
