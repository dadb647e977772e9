from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from reference_trainer.data.prompts import TaskSource
from reference_trainer.data.tokenizer import EOS_ID, build_tokenizer
from reference_trainer.platforms.registry import platform_by_name
from reference_trainer.rollout.engine import FinishReason, Sample, SamplingRequest
from reference_trainer.trainers.collect import Collector, NoPromptFits, Rollouts
from reference_trainer.trainers.phases import PhaseClock
from tests.reference_trainer.tiny import config


class ScriptedEngine:
    """Answers each request by a function of it; keeps what it was asked."""

    weight_version = 1

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.requests: list[SamplingRequest] = []

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        first = len(self.requests)
        self.requests += requests
        return [self._sample(self._answer(first + index, request)) for index, request in enumerate(requests)]

    def _sample(self, text: str) -> Sample:
        tokens = (*text.encode(), EOS_ID)
        return Sample(tokens=tokens, log_probs=(-1.0,) * len(tokens), finish_reason=FinishReason.STOP, weight_version=1)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        return 0

    def close(self) -> None: ...


def collected(
    engine: ScriptedEngine, *, longest_prompt: int = 64, size: int = 64, **sections: Any
) -> tuple[Rollouts, TaskSource]:
    settings = config(**sections)
    tokenizer = build_tokenizer()
    tasks = TaskSource(settings.task, tokenizer, seed=0, split="train", size=size)
    collector = Collector(
        settings, engine=engine, tasks=tasks, tokenizer=tokenizer, longest_prompt=longest_prompt, next_task=0
    )
    return collector.collect(step=0, clock=PhaseClock(platform_by_name("cpu"))), tasks


def right_for(tasks: TaskSource, request: SamplingRequest) -> str:
    return next(task.answer for task in tasks.tasks(0, 64) if task.prompt == request.prompt)


def answers(rule: Any) -> ScriptedEngine:
    """`rule(index, right answer)` is the response to request `index`."""
    tasks = TaskSource(config().task, build_tokenizer(), seed=0, split="train", size=64)
    return ScriptedEngine(lambda index, request: rule(index, right_for(tasks, request)))


def test_rows_of_one_prompt_stand_together_and_carry_what_the_engine_told() -> None:
    rollouts, tasks = collected(answers(lambda index, right: right if index % 2 else "no"))
    assert [row.trajectory.group for row in rollouts.rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row.score for row in rollouts.rows] == [0.0, 1.0] * 4
    for row in rollouts.rows:
        assert isinstance(row.trajectory.group, int)
        assert row.trajectory.prompt == tasks.task(row.trajectory.group).prompt
        assert row.trajectory.response == row.sample.tokens
        assert row.trajectory.rollout_log_probs == row.sample.log_probs


def test_every_request_of_a_step_has_a_seed_of_its_own() -> None:
    engine = answers(lambda index, right: "no")  # every group is degenerate, so that all rounds are drawn
    collected(engine, algorithm={"dynamic_sampling": 2})
    assert len(engine.requests) == 3 * 8
    assert len({request.seed for request in engine.requests}) == 3 * 8


def test_groups_without_a_signal_are_replaced_and_counted() -> None:
    # The first round's first two prompts fail throughout; every later prompt has one right and one wrong response.
    rule = lambda index, right: "no" if index < 4 or index % 2 else right  # noqa: E731
    rollouts, tasks = collected(answers(rule), algorithm={"dynamic_sampling": 3})
    assert rollouts.discarded_groups == 2
    assert [row.trajectory.prompt for row in rollouts.rows[::2]] == [tasks.task(index).prompt for index in (2, 3, 4, 5)]
    assert all({row.score for row in rollouts.rows[i : i + 2]} == {0.0, 1.0} for i in range(0, 8, 2))


def test_when_the_rounds_are_spent_the_batch_keeps_its_size() -> None:
    rollouts, _ = collected(answers(lambda index, right: "no"), algorithm={"dynamic_sampling": 1})
    assert len(rollouts.rows) == 8
    assert rollouts.discarded_groups == 4


def test_long_responses_lose_score_and_the_scorer_s_own_is_kept() -> None:
    overlong = {"length": 2, "factor": 0.5}
    rollouts, _ = collected(answers(lambda index, right: "xx"), algorithm={"overlong": overlong})
    assert {(row.score, row.penalty, row.trajectory.score) for row in rollouts.rows} == {(0.0, -0.5, -0.5)}


def test_a_greedy_response_to_each_prompt_is_remax_s_baseline() -> None:
    tasks = TaskSource(config().task, build_tokenizer(), seed=0, split="train", size=64)
    engine = ScriptedEngine(lambda index, request: right_for(tasks, request) if request.temperature == 0 else "no")
    rollouts, _ = collected(engine, algorithm={"advantage": "remax"})
    assert sum(request.temperature == 0 for request in engine.requests) == 4
    assert {(row.score, row.trajectory.baseline) for row in rollouts.rows} == {(0.0, 1.0)}


def test_a_prompt_beyond_the_budget_is_replaced_and_counted() -> None:
    settings = {"settings": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}}
    tasks = TaskSource(config(task=settings).task, build_tokenizer(), seed=0, split="train", size=64)
    lengths = [len(task.prompt) for task in tasks.tasks(0, 64)]
    budget = min(lengths) + 1
    engine = ScriptedEngine(lambda index, request: "no")
    rollouts, _ = collected(engine, longest_prompt=budget, task=settings)
    fitting = [index for index, length in enumerate(lengths) if length <= budget][:4]
    assert rollouts.dropped_prompts == fitting[-1] + 1 - 4
    assert max(len(row.trajectory.prompt) for row in rollouts.rows) <= budget


def test_a_budget_that_no_prompt_meets_is_told() -> None:
    with pytest.raises(NoPromptFits, match=r"longer than the 1 tokens.*rollout.max_prompt_tokens"):
        collected(ScriptedEngine(lambda index, request: "no"), longest_prompt=1)
