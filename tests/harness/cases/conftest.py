"""The smallest cell, context and case: enough for cases that never ask their subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from hypothesis import strategies as st

from harness.cases.base import Case, Context
from harness.cases.runner import CaseAnswer, run_case
from harness.matrix.cell import Cell

TOY_CELL = Cell(
    subject="reference", hardware="cpu", model="qwen3", algorithm="grpo", mode="sync", engine="native", topology="dp1"
)

JudgeToy = Callable[..., CaseAnswer]


@pytest.fixture
def judge_toy() -> JudgeToy:
    """Run a check over a strategy as a case would be run: `judge_toy(check, strategy, examples=…, data=…)`."""

    def run(
        check: Callable[[Context, Mapping[str, Any]], None],
        strategy: st.SearchStrategy[dict[str, Any]] | None = None,
        *,
        seed: int = 1,
        examples: int = 100,
        data: Mapping[str, Any] | None = None,
        seconds: float = 60.0,
        progress: Callable[[], None] = lambda: None,
    ) -> CaseAnswer:
        limit, one_input = seconds, strategy is None

        class Toy(Case):
            id = "toy.case"
            origin = "none"
            axes = ()
            needs = frozenset()
            examples = 1 if one_input else 50
            seconds = limit

            def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
                return st.just({}) if strategy is None else strategy

            def check(self, context: Context, data: Mapping[str, Any]) -> None:
                check(context, data)

        context = Context(cell=TOY_CELL, subject=cast(Any, None), seed=seed, progress=progress)
        return run_case(Toy(), context, seed=seed, examples=examples, data=data)

    return run
