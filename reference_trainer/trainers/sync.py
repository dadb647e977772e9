"""The synchronous trainer: rollout → reward → advantage → update → weight sync, one after the other.

`SyncTrainer.step` reads top to bottom; what it calls are pure functions, or one object with one duty.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reference_trainer.config import TrainerConfig
from reference_trainer.data.layout import Row, RowBatch, lay_out
from reference_trainer.data.padding import Side
from reference_trainer.data.prompts import Task, TaskSource
from reference_trainer.determinism import deterministic_algorithms
from reference_trainer.fingerprint import fingerprint
from reference_trainer.models.critic import Critic
from reference_trainer.platforms.base import Platform
from reference_trainer.rewards.scorers import response_text, score_response
from reference_trainer.rollout.engine import RolloutEngine, SamplingRequest
from reference_trainer.seeds import derive_seed
from reference_trainer.trainers.experience import (
    Experience,
    Trajectory,
    counted_tokens,
    estimate_advantages,
    given_log_probs,
)
from reference_trainer.trainers.forward import in_chunks, response_log_probs, response_values
from reference_trainer.trainers.measure import measure_step
from reference_trainer.trainers.phases import PhaseClock
from reference_trainer.trainers.update import Updater, UpdateResult
from reference_trainer.trainers.warm_start import train_on_answers
from reference_trainer.weights.export import export_tensors

T = TypeVar("T")

_PROBES_PER_REPLICA = 2  # greedy samples that are scored again after a weight sync


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a trainer is put together from; `factory.build_trainer` makes them."""

    platform: Platform
    tokenizer: PreTrainedTokenizerFast
    policy: PreTrainedModel
    reference: PreTrainedModel
    critic: Critic | None
    engine: RolloutEngine
    tasks: TaskSource
    held_out: TaskSource


class SyncTrainer:
    """Trains `parts.policy`, samples from `parts.engine`. Not thread-safe; `close` ends the engine."""

    def __init__(self, config: TrainerConfig, parts: Parts) -> None:
        self.config = config
        self.tokenizer = parts.tokenizer
        self.policy = parts.policy
        self.critic = parts.critic
        self.engine = parts.engine
        self.steps_done = 0
        self._reference = parts.reference.requires_grad_(False)
        self.platform = parts.platform
        self._tasks = parts.tasks
        self._held_out = parts.held_out
        self.updater = Updater(parts.policy, parts.critic, config=config, pad_id=parts.tokenizer.pad_token_id)
        self._version = 0
        self._sync_weights()

    @deterministic_algorithms()
    def warm_start(self) -> float:
        """Supervised start; freezes its result as the reference policy, the critic's backbone and the engine's weights.

        Returns the negative log-prob per token of its last batch.
        """
        loss = train_on_answers(self.policy, self._tasks, self.tokenizer, config=self.config)
        self._reference.load_state_dict(self.policy.state_dict())
        if self.critic is not None:
            self.critic.start_from(self.policy)
        self._sync_weights()
        return loss

    @deterministic_algorithms()
    def step(self) -> dict[str, float | None]:
        """One rollout batch and the updates from it; returns the fields of `StepMetrics` by name."""
        clock = PhaseClock(self.platform)
        task, batch = self.config.task, self.config.batch

        with clock.phase("rollout"):
            # Tasks before these went into the warm start.
            first = (
                self.config.warm_start.steps * self.config.warm_start.batch + self.steps_done * task.prompts_per_step
            )
            tasks = self._tasks.tasks(first, task.prompts_per_step)
            groups = [group for group in range(len(tasks)) for _ in range(self.config.algorithm.group_size)]
            prompts = [tasks[group].prompt for group in groups]
            samples = self.engine.generate(self._requests(prompts))

        with clock.phase("reward"):
            texts = [response_text(self.tokenizer, sample.tokens) for sample in samples]
            scores = [
                score_response(self._tasks, tasks[group], text) for group, text in zip(groups, texts, strict=True)
            ]

        with clock.phase("logprob"):
            experience = self.experience(
                [
                    Trajectory(prompt=prompt, response=sample.tokens, score=score, group=group)
                    for prompt, sample, score, group in zip(prompts, samples, scores, groups, strict=True)
                ]
            )

        with clock.phase("update"):
            results = []
            for epoch in range(batch.epochs):
                for rows in self._mini_batches(len(samples), epoch):
                    mini_batch = experience.select(rows)
                    results.append(self.updater.run(mini_batch, splits=_chunks(range(len(rows)), batch.micro_batch)))

        with clock.phase("sync"):
            staleness = self._version - min(sample.weight_version for sample in samples)
            self._sync_weights()
            sync_gap = self._probe_sync()

        metrics = measure_step(
            step=self.steps_done,
            samples=samples,
            scores=scores,
            groups=groups,
            experience=experience,
            results=results,
            staleness=staleness,
            sync_gap=sync_gap,
            clock=clock,
            memory=self.platform.memory(),
        )
        self.steps_done += 1
        return metrics.as_dict()

    @deterministic_algorithms()
    def evaluate(self) -> float:
        """Mean score of greedy responses to the held-out prompts, sampled by the engine."""
        tasks = self._held_out.tasks(0, self.config.task.eval_prompts)
        samples = self.engine.generate(self._greedy_requests(tasks))
        texts = [response_text(self.tokenizer, sample.tokens) for sample in samples]
        return statistics.fmean(
            score_response(self._held_out, task, text) for task, text in zip(tasks, texts, strict=True)
        )

    @torch.no_grad()
    def experience(self, trajectories: Sequence[Trajectory]) -> Experience:
        """Everything that is fixed before the update: old and reference log-probs, values, advantages."""
        rows = tuple(trajectory.row for trajectory in trajectories)
        mask = counted_tokens(trajectories, device=self.policy.device)
        critic = self.critic
        values = None if critic is None else self._in_chunks(lambda batch: response_values(critic, batch), rows)
        advantages, returns = estimate_advantages(
            self.config.algorithm,
            scores=torch.tensor([trajectory.score for trajectory in trajectories], device=self.policy.device),
            groups=[trajectory.group for trajectory in trajectories],
            mask=mask,
            values=values,
        )
        return Experience(
            rows=rows,
            mask=mask,
            old_log_probs=given_log_probs(trajectories, lambda rows: self._log_probs_under(self.policy, rows)),
            reference_log_probs=self._log_probs_under(self._reference, rows),
            advantages=advantages,
            old_values=values,
            returns=returns,
        )

    @deterministic_algorithms()
    def update(
        self, trajectories: Sequence[Trajectory], *, splits: Sequence[Sequence[int]], apply: bool = True
    ) -> UpdateResult:
        """One mini-batch through the update, cut by row into `splits`; with `apply=False` nothing is stepped."""
        return self.updater.run(self.experience(trajectories), splits=splits, apply=apply)

    @torch.no_grad()
    def log_probs(
        self,
        rows: Sequence[Row],
        *,
        side: Side = "right",
        extra_padding: int = 0,
        rows_per_batch: int = 0,
        temperature: float | None = None,
    ) -> list[torch.Tensor]:
        """Log-probs `(len(response),)` of each row's response tokens, under the policy.

        The layout is the caller's: padding side, columns beyond the longest row, rows of one pass (0: all).
        `temperature` None is the rollout's.
        """
        answers: list[torch.Tensor] = []
        for part in _chunks(list(rows), rows_per_batch or max(len(rows), 1)):
            batch = lay_out(
                part,
                pad_id=self.tokenizer.pad_token_id,
                side=side,
                extra_padding=extra_padding,
                device=self.policy.device,
            )
            log_probs, _ = response_log_probs(
                self.policy, batch, temperature=self.config.rollout.temperature if temperature is None else temperature
            )
            answers += [found[: len(row.response)] for found, row in zip(log_probs, part, strict=True)]
        return answers

    def fingerprint(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes of all parameters of policy and critic."""
        return fingerprint({"policy": self.policy} | ({"critic": self.critic} if self.critic is not None else {}))

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _log_probs_under(self, policy: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
        temperature = self.config.rollout.temperature
        return self._in_chunks(lambda batch: response_log_probs(policy, batch, temperature=temperature)[0], rows)

    def _in_chunks(self, compute: Callable[[RowBatch], torch.Tensor], rows: Sequence[Row]) -> torch.Tensor:
        return in_chunks(
            compute,
            rows,
            rows_per_batch=self.config.batch.micro_batch,
            pad_id=self.tokenizer.pad_token_id,
            device=self.policy.device,
        )

    def _requests(self, prompts: Sequence[tuple[int, ...]]) -> list[SamplingRequest]:
        rollout = self.config.rollout
        return [
            SamplingRequest(
                prompt=prompt,
                seed=derive_seed(self.config.seed, "rollout", self.steps_done, row),
                max_tokens=rollout.max_tokens,
                temperature=rollout.temperature,
                top_p=rollout.top_p,
                top_k=rollout.top_k,
            )
            for row, prompt in enumerate(prompts)
        ]

    def _greedy_requests(self, tasks: Sequence[Task]) -> list[SamplingRequest]:
        return [
            SamplingRequest(prompt=task.prompt, seed=0, max_tokens=self.config.rollout.max_tokens, temperature=0.0)
            for task in tasks
        ]

    def _mini_batches(self, rows: int, epoch: int) -> list[list[int]]:
        """Rows of each mini-batch: a fresh order each epoch when there are several, else as they came."""
        size = self.config.batch.mini_batch
        if size == rows:
            return [list(range(rows))]
        seed = derive_seed(self.config.seed, "mini-batches", self.steps_done, epoch)
        return _chunks(torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist(), size)

    def _sync_weights(self) -> None:
        self._version += 1
        self.engine.update_weights(export_tensors(self.policy), version=self._version)

    def _probe_sync(self) -> float:
        """Largest log-prob gap between the engine and the policy, on a few greedy responses to held-out prompts."""
        tasks = self._held_out.tasks(0, _PROBES_PER_REPLICA * self.config.dp)
        samples = self.engine.generate(self._greedy_requests(tasks))
        rows = [Row(task.prompt, sample.tokens, task.images) for task, sample in zip(tasks, samples, strict=True)]
        ours = self.log_probs(rows, temperature=1.0)  # an engine tells a greedy token's log-prob at temperature 1
        return max(
            (
                abs(a - b)
                for row, sample in zip(ours, samples, strict=True)
                for a, b in zip(row.tolist(), sample.log_probs, strict=True)
            ),
            default=0.0,
        )


def _chunks(items: Sequence[T], size: int) -> list[list[T]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
