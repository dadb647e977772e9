"""What does not fit together is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cases.registry import all_cases
from harness.errors import NothingMeasuredError, RequestError
from harness.execution.limits import GIB
from harness.execution.preparation import Request, limits_of, prepare
from harness.hardware.probe import Finding
from harness.matrix.plan import Plan, make_plan
from harness.matrix.schema import SuiteLimits
from harness.matrix.selection import Selection


def plan(**selection: Any) -> Plan:
    return make_plan("smoke", Selection(**selection), cases=all_cases())


def one_case() -> Plan:
    return plan(cells=("cpu/qwen3/grpo/sync/native/dp1",), cases=("loss.matches-oracle",))


def prepared(made: Plan, **request: Any) -> Any:
    return prepare(made, Request(**request), cases=all_cases(), run_id="r", folder=Path("b"))


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"profile": "nightli"}, 'did you mean "nightly"?'),
        ({"mutant": "no.such:one"}, 'no mutant "no.such:one"'),
        ({"examples": 0}, "--examples is 0"),
        ({"workers": -1}, "--workers is -1"),
        ({"time_scale": 0.0}, "--time-scale is 0.0"),
        ({"time_scale": float("nan")}, "--time-scale is nan"),
        ({"input_json": "{"}, "not JSON"),
        ({"input_json": "[1]"}, "must be a JSON object"),
    ],
)
def test_a_bad_request_is_one_sentence(request_: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepared(one_case(), **request_)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("request_", [{"input_json": "{}"}, {"case_seed": 1}])
def test_reproducing_needs_one_case_in_one_cell(request_: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="reproduce one case in one cell"):
        prepared(plan(), **request_)


def test_a_plan_that_this_machine_cannot_run_measures_nothing() -> None:
    nowhere = make_plan(
        "smoke", Selection(), cases=all_cases(), probe=lambda platform: Finding(evidence=None, reason="no such card")
    )
    with pytest.raises(NothingMeasuredError, match="no such card"):
        prepared(nowhere)


def test_a_pull_request_run_is_derandomised_and_a_nightly_one_explores() -> None:
    seeds = [prepared(one_case(), profile=name)[1].seed for name in ("pr", "pr", "nightly", "nightly")]
    assert seeds[0] == seeds[1]
    assert seeds[2] != seeds[3]


def test_what_a_person_says_of_time_beats_what_the_suite_says() -> None:
    suite = SuiteLimits(process_gib=1.5, time_scale=2.0)
    assert limits_of(suite, workers=1).process_bytes == int(1.5 * GIB)
    assert limits_of(suite, workers=1).time_scale == 2.0
    assert limits_of(suite, workers=1, time_scale=5.0).time_scale == 5.0
    assert limits_of(SuiteLimits(), workers=10_000).threads == 1
