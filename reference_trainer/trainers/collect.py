"""One rollout batch: prompts drawn, responses sampled and scored, groups without a signal replaced (DAPO)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from reference_trainer.algorithms.groups import keep_informative
from reference_trainer.algorithms.shaping import overlong_penalty
from reference_trainer.config import TrainerConfig
from reference_trainer.data.prompts import Task, TaskSource
from reference_trainer.rewards.scorers import response_text, score_response
from reference_trainer.rollout.engine import RolloutEngine, Sample, SamplingRequest
from reference_trainer.seeds import derive_seed
from reference_trainer.trainers.experience import Trajectory
from reference_trainer.trainers.phases import PhaseClock

_MOST_DROPPED = 1000  # prompts in a row without one that fits: then none will


class NoPromptFits(ValueError):
    """No prompt of the task source is short enough for the budget."""


@dataclass(frozen=True, kw_only=True)
class ScoredSample:
    """One response, and what it is worth."""

    trajectory: Trajectory
    """Its score is the scorer's plus the penalty."""
    sample: Sample
    score: float
    """As the scorer told it."""
    penalty: float
    """For the response's length; at most 0."""


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The rows of one batch; those of one prompt stand together."""

    rows: tuple[ScoredSample, ...]
    dropped_prompts: int
    """Prompts longer than the budget, which others replaced."""
    discarded_groups: int
    """Groups of equal scores, which others replaced."""


class Collector:
    """Draws the batches of a run, one after the other."""

    def __init__(
        self,
        config: TrainerConfig,
        *,
        engine: RolloutEngine,
        tasks: TaskSource,
        tokenizer: PreTrainedTokenizerFast,
        longest_prompt: int,
        next_task: int,
    ) -> None:
        """`next_task` is the first that no training has seen."""
        self._config = config
        self._engine = engine
        self._tasks = tasks
        self._tokenizer = tokenizer
        self._longest_prompt = longest_prompt
        self._next_task = next_task

    def collect(self, *, step: int, clock: PhaseClock) -> Rollouts:
        """The batch of one step. Raises NoPromptFits when no prompt is short enough."""
        wanted = self._config.task.prompts_per_step
        kept: list[ScoredSample] = []
        spare: list[ScoredSample] = []
        groups = kept_groups = dropped = 0
        for _ in range(1 + self._config.algorithm.dynamic_sampling):
            tasks, too_long = self._draw_tasks(wanted - kept_groups)
            dropped += too_long
            rows = self._sample_and_score(tasks, step=step, first_group=groups, clock=clock)
            groups += len(tasks)
            informative = self._informative(rows)
            kept += [row for index, row in enumerate(rows) if index in informative]
            spare += [row for index, row in enumerate(rows) if index not in informative]
            kept_groups = len(kept) // self._config.algorithm.group_size
            if kept_groups == wanted:
                break
        # A batch keeps its size whatever was found: its degenerate groups are counted in the metrics.
        return Rollouts(
            rows=tuple([*kept, *spare][: self._config.rows_per_step]),
            dropped_prompts=dropped,
            discarded_groups=groups - wanted,
        )

    def _draw_tasks(self, count: int) -> tuple[list[Task], int]:
        """The next tasks whose prompts fit, and how many did not."""
        tasks: list[Task] = []
        dropped = 0
        while len(tasks) < count:
            task = self._tasks.task(self._next_task)
            self._next_task += 1
            if len(task.prompt) <= self._longest_prompt:
                tasks.append(task)
                continue
            dropped += 1
            if dropped == _MOST_DROPPED and not tasks:
                raise NoPromptFits(
                    f"each of {dropped} prompts in a row is longer than the {self._longest_prompt} tokens of its "
                    f"budget (the last has {len(task.prompt)}); raise rollout.max_prompt_tokens or the model's "
                    "positions, or lower rollout.max_tokens"
                )
        return tasks, dropped

    def _sample_and_score(
        self, tasks: list[Task], *, step: int, first_group: int, clock: PhaseClock
    ) -> list[ScoredSample]:
        algorithm, rollout = self._config.algorithm, self._config.rollout
        size = algorithm.group_size
        with clock.phase("rollout"):
            samples = self._engine.generate(
                [
                    SamplingRequest(
                        prompt=task.prompt,
                        images=task.images,
                        seed=derive_seed(self._config.seed, "rollout", step, (first_group + index) * size + member),
                        max_tokens=rollout.max_tokens,
                        temperature=rollout.temperature,
                        top_p=rollout.top_p,
                        top_k=rollout.top_k,
                    )
                    for index, task in enumerate(tasks)
                    for member in range(size)
                ]
            )
            greedy = self._engine.generate(greedy_requests(tasks, rollout.max_tokens)) if self._wants_baseline else []
        with clock.phase("reward"):
            baselines = [self._score(task, sample) for task, sample in zip(tasks, greedy, strict=False)]
            rows = []
            for index, sample in enumerate(samples):
                task = tasks[index // size]
                score, penalty = self._score(task, sample), self._penalty(sample)
                trajectory = Trajectory(
                    prompt=task.prompt,
                    images=task.images,
                    response=sample.tokens,
                    score=score + penalty,
                    group=first_group + index // size,
                    baseline=baselines[index // size] if baselines else None,
                    rollout_log_probs=sample.log_probs,
                )
                rows.append(ScoredSample(trajectory=trajectory, sample=sample, score=score, penalty=penalty))
        return rows

    @property
    def _wants_baseline(self) -> bool:
        return self._config.algorithm.advantage == "remax"

    def _informative(self, rows: list[ScoredSample]) -> set[int]:
        if not self._config.algorithm.dynamic_sampling:
            return set(range(len(rows)))
        scores = torch.tensor([row.trajectory.score for row in rows], dtype=torch.float64)
        return set(keep_informative(scores, [row.trajectory.group for row in rows]))

    def _score(self, task: Task, sample: Sample) -> float:
        return score_response(self._tasks, task, response_text(self._tokenizer, sample.tokens))

    def _penalty(self, sample: Sample) -> float:
        overlong = self._config.algorithm.overlong
        if overlong is None or not overlong.enabled:
            return 0.0
        return overlong_penalty(
            torch.tensor([len(sample.tokens)]),
            max_length=self._config.rollout.max_tokens,
            buffer=overlong.length,
            factor=overlong.factor,
            enabled=overlong.enabled,
        ).item()


def greedy_requests(tasks: list[Task], max_tokens: int) -> list[SamplingRequest]:
    """One greedy request a task."""
    return [
        SamplingRequest(prompt=task.prompt, images=task.images, seed=0, max_tokens=max_tokens, temperature=0.0)
        for task in tasks
    ]
