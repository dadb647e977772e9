from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from harness.cases.base import require
from harness.results.vocabulary import FailureClass

JudgeToy = Callable[..., Any]
LISTS = st.fixed_dictionaries({"xs": st.lists(st.integers(0, 1000), max_size=30)})


def _no_big_number(context: Any, data: Any) -> None:
    require(max(data["xs"], default=0) < 17, f"saw {max(data['xs'], default=0)}")


def test_a_failure_is_shrunk_to_the_smallest_plain_input(judge_toy: JudgeToy) -> None:
    answer = judge_toy(_no_big_number, LISTS)
    assert not answer.passed
    assert answer.by_assertion
    assert answer.failure_class is FailureClass.CONTRACT
    assert answer.shrunk_input == {"xs": [17]}
    assert answer.message == "saw 17"
    assert "Violation" in answer.detail
    assert json.loads(json.dumps(answer.shrunk_input)) == answer.shrunk_input


def test_a_pass_counts_every_input_that_was_judged(judge_toy: JudgeToy) -> None:
    moved: list[None] = []
    answer = judge_toy(lambda context, data: None, LISTS, examples=60, progress=lambda: moved.append(None))
    assert answer.passed
    assert answer.examples == len(moved) == 60
    assert answer.shrunk_input is None


def test_inputs_that_do_not_fit_are_counted_apart(judge_toy: JudgeToy) -> None:
    answer = judge_toy(lambda context, data: assume(len(data["xs"]) % 2 == 0) and None, LISTS, examples=60)
    assert answer.passed
    assert answer.examples == 60
    assert answer.discarded > 0


def test_a_case_that_judged_nothing_has_not_passed(judge_toy: JudgeToy) -> None:
    answer = judge_toy(lambda context, data: assume(False) and None, LISTS)
    assert not answer.passed
    assert not answer.by_assertion
    assert answer.examples == 0
    assert "judged no input" in answer.message


def test_a_replayed_input_is_judged_alone(judge_toy: JudgeToy) -> None:
    seen: list[Any] = []
    answer = judge_toy(lambda context, data: seen.append(data), LISTS, data={"xs": [3, 4]})
    assert answer.passed
    assert answer.examples == 1
    assert seen == [{"xs": [3, 4]}]


def test_a_replayed_failure_fails_as_it_did(judge_toy: JudgeToy) -> None:
    found = judge_toy(_no_big_number, LISTS)
    again = judge_toy(_no_big_number, LISTS, data=found.shrunk_input)
    assert (again.message, again.by_assertion, again.shrunk_input) == (found.message, True, found.shrunk_input)


def test_a_case_with_one_input_runs_once_even_when_it_fails(judge_toy: JudgeToy) -> None:
    runs: list[Any] = []

    def check(context: Any, data: Any) -> None:
        runs.append(data)
        require(False, "never holds")

    answer = judge_toy(check)
    assert runs == [{}]
    assert answer.by_assertion
    assert answer.shrunk_input == {}


def test_an_error_on_the_way_is_a_failure_but_no_assertion(judge_toy: JudgeToy) -> None:
    def check(context: Any, data: Any) -> None:
        raise AttributeError("no such thing")

    answer = judge_toy(check, LISTS)
    assert not answer.passed
    assert not answer.by_assertion
    assert answer.failure_class is FailureClass.CONTRACT


def test_a_strategy_that_breaks_is_a_failure_of_the_case(judge_toy: JudgeToy) -> None:
    answer = judge_toy(lambda context, data: None, LISTS.map(lambda data: {"xs": 1 / len(data["ys"])}))
    assert not answer.passed
    assert not answer.by_assertion
    assert "KeyError" in answer.detail
    assert answer.shrunk_input is None


@pytest.mark.parametrize("message", ["loss is nan at step 3", "probability tensor contains inf", "loss is not finite"])
def test_an_error_about_a_number_that_is_not_finite_is_told_apart(judge_toy: JudgeToy, message: str) -> None:
    def check(context: Any, data: Any) -> None:
        raise ValueError(message)

    answer = judge_toy(check, LISTS)
    assert answer.failure_class is FailureClass.NUMERICS_NAN
    assert not answer.by_assertion


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 8")])
def test_running_out_of_memory_is_left_to_whoever_watches_the_process(judge_toy: JudgeToy, error: Exception) -> None:
    def check(context: Any, data: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        judge_toy(check, LISTS)


def test_shrinking_stays_with_the_kind_of_failure_found_first(judge_toy: JudgeToy) -> None:
    def check(context: Any, data: Any) -> None:
        if max(data["xs"], default=0) > 400:
            raise IndexError("far too much")
        require(sum(data["xs"]) < 100, "too much")

    answers = [judge_toy(check, LISTS, seed=seed) for seed in range(8)]
    assert {answer.by_assertion for answer in answers} == {True, False}
    for answer in answers:
        assert sum(answer.shrunk_input["xs"]) == (100 if answer.by_assertion else 401)


def test_shrinking_ends_with_its_share_of_the_time_limit(judge_toy: JudgeToy) -> None:
    def check(context: Any, data: Any) -> None:
        if sum(data["xs"]) > 1000:
            time.sleep(0.05)
            require(False, "slow and wrong")

    started = time.monotonic()
    answer = judge_toy(check, LISTS, seconds=2.0)
    assert answer.by_assertion
    assert time.monotonic() - started < 4.0
