"""The command in a record is one shell line that names everything the failure needs."""

from __future__ import annotations

import json
import shlex

from hypothesis import given
from hypothesis import strategies as st

from harness.execution.reproduce import reproduce_command
from harness.execution.seeds import derived_seed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(data=st.dictionaries(st.text(), JSON, max_size=3))
def test_any_shrunk_input_survives_the_shell(data: dict[str, object]) -> None:
    line = reproduce_command(suite="smoke", cell="c", case="a.b", seed=3, examples=50, shrunk_input=data)
    assert "\n" not in line
    words = shlex.split(line)
    assert json.loads(words[words.index("--input") + 1]) == data


def test_without_an_input_the_draw_is_repeated() -> None:
    line = reproduce_command(suite="smoke", cell="c", case="a.b", seed=3, examples=50, shrunk_input=None)
    assert line == "rl-gauntlet run smoke --cell c --case a.b --case-seed 3 --examples 50"


def test_an_input_too_long_for_a_line_is_drawn_again_by_its_seed() -> None:
    line = reproduce_command(
        suite="smoke", cell="c", case="a.b", seed=3, examples=50, shrunk_input={"x": "y" * 20_000}, mutant="a.b:m"
    )
    assert line.endswith("--case-seed 3 --examples 50 --mutant a.b:m")


def test_seeds_follow_from_names_alone() -> None:
    assert derived_seed(1, "a", "bc") == derived_seed(1, "a", "bc")
    assert len({derived_seed(1, "a", "bc"), derived_seed(1, "ab", "c"), derived_seed(2, "a", "bc")}) == 3
    assert 0 <= derived_seed(7, "x") < 2**31
