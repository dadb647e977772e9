"""What the end-to-end cases make of a training: scripted runs in, verdicts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.cases.base import Case, Context
from harness.cases.runner import CaseAnswer, run_case
from harness.cases.training import Learns, RepeatsBitEqual, Trains
from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.subjects.protocol import Capability, TrainingRun

GOOD: Mapping[str, float | None] = {
    "reward": 0.2,
    "groups": 4,
    "degenerate_groups": 1,
    "response_tokens": 30,
    "updates": 1,
    "staleness": 0,
    "prompt_length": 6.0,
    "response_length_max": 4,
    "logprob_gap": 1e-6,
    "sync_gap": 1e-6,
    "value_loss": None,
    "step_seconds": 0.5,
}
LEARN = {"seeds": [1, 2, 3, 4], "steps": 2, "confidence": 0.95, "min_gain": 0.0}


class Scripted:
    """A subject whose trainings are made up."""

    def __init__(self, run: Callable[[int, int], TrainingRun]) -> None:
        self._run = run
        self._runs = 0

    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.TRAINING})

    def depth(self) -> tuple[int, int]:
        return 2, 32

    def train(self, *, seed: int, steps: int, on_step: Any, warm_start_steps: int | None = None) -> TrainingRun:
        self._runs += 1
        run = self._run(self._runs, seed)
        for step, metrics in enumerate(run.steps):
            on_step(step, metrics)
        return run


def _run(*, steps: int = 3, gain: float = 0.1, mark: object = "", **changes: Any) -> TrainingRun:
    return TrainingRun(
        steps=tuple({**GOOD, **changes} for _ in range(steps)),
        fingerprint=f"after{mark}",
        fingerprint_before=f"before{mark}",
        rollout_workers=1,
        greedy_reward_before=0.25,
        greedy_reward_after=0.25 + gain,
    )


def _judge(case: Case, cell: Cell, run: Callable[[int, int], TrainingRun], **context: Any) -> CaseAnswer:
    subject: Any = Scripted(run)
    return run_case(case, Context(cell=cell, subject=subject, seed=7, **context), seed=7, examples=case.examples)


def test_a_real_training_passes_and_tells_each_step(tiny_cell: Cell) -> None:
    told: list[tuple[int, int]] = []
    answer = _judge(
        Trains(), tiny_cell, lambda count, seed: _run(), on_step=lambda seed, step, metrics: told.append((seed, step))
    )
    assert answer.passed, answer.message
    assert told == [(7, 0), (7, 1), (7, 2)]
    assert answer.notes["fingerprint"] == "after"


@pytest.mark.parametrize(
    ("changes", "failure_class", "words"),
    [
        ({"reward": float("nan")}, FailureClass.NUMERICS_NAN, "reward of step 0 is nan"),
        ({"response_tokens": 0}, FailureClass.CONTRACT, "drew no tokens"),
        ({"updates": 0}, FailureClass.CONTRACT, "made no update"),
        ({"staleness": 2}, FailureClass.CONTRACT, "2 weight versions old"),
        ({"logprob_gap": 0.01}, FailureClass.NUMERICS_DRIFT, "logprob_gap of the rollout of step 0 is 0.01"),
        ({"sync_gap": 0.01}, FailureClass.NUMERICS_DRIFT, "sync_gap right after the weight sync"),
        ({"degenerate_groups": 4}, FailureClass.CONTRACT, "nothing to learn from"),
        ({"steps": 2}, FailureClass.CONTRACT, "3 steps were asked for, 2 are told"),
    ],
)
def test_a_step_that_did_not_happen_is_told(
    tiny_cell: Cell, changes: dict[str, Any], failure_class: FailureClass, words: str
) -> None:
    answer = _judge(Trains(), tiny_cell, lambda count, seed: _run(**changes))
    assert answer.by_assertion
    assert answer.failure_class is failure_class
    assert words in answer.message


def test_parameters_that_stay_are_told(tiny_cell: Cell) -> None:
    answer = _judge(Trains(), tiny_cell, lambda count, seed: replace(_run(), fingerprint="before"))
    assert "no parameter moved" in answer.message


def test_a_worker_too_few_is_told(tiny_cell: Cell) -> None:
    cell = replace(tiny_cell, topology="dp2")
    answer = _judge(Trains(), cell, lambda count, seed: _run())
    assert "1 rollout workers sampled; topology dp2 names 2" in answer.message


def test_equal_runs_repeat_whatever_their_times(tiny_cell: Cell) -> None:
    answer = _judge(RepeatsBitEqual(), tiny_cell, lambda count, seed: _run(step_seconds=float(count)))
    assert answer.passed, answer.message


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"reward": 0.2 + 1e-15}, "reward of step 0 is 0.2 in one run and 0.20000000000000"),
        ({"mark": "!"}, "differ after the warm start"),
    ],
)
def test_runs_that_differ_do_not_repeat(tiny_cell: Cell, second: dict[str, Any], words: str) -> None:
    answer = _judge(RepeatsBitEqual(), tiny_cell, lambda count, seed: _run(**({} if count == 1 else second)))
    assert answer.failure_class is FailureClass.NUMERICS_DRIFT
    assert words in answer.message


def _learning(cell: Cell) -> Cell:
    return replace(cell, learn=LEARN)


def test_learning_is_judged_only_where_the_cell_says_so(tiny_cell: Cell) -> None:
    assert "does not say" in Learns().applies(tiny_cell)
    assert Learns().applies(_learning(tiny_cell)) == ""


def test_a_clear_gain_over_the_seeds_is_learning_and_its_test_is_recorded(tiny_cell: Cell) -> None:
    cell = _learning(tiny_cell)
    answer = _judge(Learns(), cell, lambda count, seed: _run(gain=0.1 + seed / 100, mark=seed))
    assert answer.passed, answer.message
    learning = answer.notes["learning"]
    assert learning["seeds"] == [1, 2, 3, 4]
    assert learning["gains"] == pytest.approx([0.11, 0.12, 0.13, 0.14])
    assert learning["p_value"] < learning["alpha"] == pytest.approx(0.05)
    assert learning["fingerprints"] == ["after1", "after2", "after3", "after4"]


def test_a_gain_that_luck_explains_is_not_learning(tiny_cell: Cell) -> None:
    answer = _judge(Learns(), _learning(tiny_cell), lambda count, seed: _run(gain=0.1 * (-1) ** seed, mark=seed))
    assert answer.by_assertion
    assert answer.failure_class is FailureClass.CONTRACT
    assert "is not shown" in answer.message


def test_seeds_that_end_alike_are_no_seeds(tiny_cell: Cell) -> None:
    answer = _judge(Learns(), _learning(tiny_cell), lambda count, seed: _run(gain=0.1 + seed / 100))
    assert "not independent" in answer.message
