"""The synchronous trainer: rollout → reward → advantage → update → weight sync, one after the other.

`SyncTrainer.step` reads top to bottom; what it calls are pure functions, or one object with one duty.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reference_trainer.config import TrainerConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.data.padding import Side
from reference_trainer.data.prompts import TaskSource
from reference_trainer.determinism import deterministic_algorithms
from reference_trainer.fingerprint import fingerprint
from reference_trainer.models.capabilities import read_capabilities
from reference_trainer.models.critic import Critic
from reference_trainer.platforms.base import Platform
from reference_trainer.rewards.scorers import response_text, score_response
from reference_trainer.rollout.engine import RolloutEngine
from reference_trainer.seeds import derive_seed
from reference_trainer.trainers.assess import Assessor
from reference_trainer.trainers.collect import Collector, greedy_requests
from reference_trainer.trainers.experience import Trajectory
from reference_trainer.trainers.forward import response_log_probs
from reference_trainer.trainers.measure import measure_step
from reference_trainer.trainers.phases import PhaseClock
from reference_trainer.trainers.update import Updater, UpdateResult
from reference_trainer.trainers.warm_start import train_on_answers
from reference_trainer.weights.apply import apply_tensors
from reference_trainer.weights.export import export_tensors

T = TypeVar("T")

_PROBES_PER_REPLICA = 2  # greedy samples that are scored again after a weight sync
_PROBE_TOKENS = 2  # of each: a stale weight shows at the first, a stale cache at the one that reads it


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a trainer is put together from; `factory.build_trainer` makes them."""

    platform: Platform
    tokenizer: PreTrainedTokenizerFast
    policy: PreTrainedModel
    reference: PreTrainedModel | None
    """None where nothing asks for it."""
    teacher: PreTrainedModel | None
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
        self.reference = parts.reference
        self.teacher = parts.teacher
        self.platform = parts.platform
        self._tasks = parts.tasks
        self._held_out = parts.held_out
        pad_id = parts.tokenizer.pad_token_id
        self.assessor = Assessor(parts.policy, parts.reference, parts.critic, config=config, pad_id=pad_id)
        self.updater = Updater(parts.policy, parts.critic, config=config, pad_id=pad_id, teacher=parts.teacher)
        self._collector = Collector(
            config,
            engine=parts.engine,
            tasks=parts.tasks,
            tokenizer=parts.tokenizer,
            longest_prompt=longest_prompt(config, parts.policy),
            next_task=config.supervised_tasks,
        )
        self._version = 0
        self._sync_weights()

    @deterministic_algorithms()
    def warm_start(self) -> float:
        """Supervised start; its result is the reference policy, the critic's backbone and the engine's weights.

        A teacher goes on from it for its own steps. Returns the negative log-prob per token of the policy's last batch.
        """
        settings = self.config.warm_start
        loss = train_on_answers(
            self.policy, self._tasks, self.tokenizer, config=self.config, first_task=0, steps=settings.steps
        )
        if self.reference is not None:
            apply_tensors(self.reference, export_tensors(self.policy, drafter=False))
        distillation = self.config.algorithm.distillation
        if self.teacher is not None and distillation is not None and distillation.teacher_checkpoint is None:
            apply_tensors(self.teacher, export_tensors(self.policy, drafter=False))
            train_on_answers(
                self.teacher,
                self._tasks,
                self.tokenizer,
                config=self.config,
                first_task=settings.steps * settings.batch,
                steps=distillation.teacher_steps,
            )
        if self.critic is not None:
            self.critic.start_from(self.policy)
        self._sync_weights()
        return loss

    @deterministic_algorithms()
    def step(self) -> dict[str, float | None]:
        """One rollout batch and the updates from it; returns the fields of `StepMetrics` by name."""
        clock = PhaseClock(self.platform)
        batch = self.config.batch

        rollouts = self._collector.collect(step=self.steps_done, clock=clock)

        with clock.phase("logprob"):
            experience = self.assessor.experience([row.trajectory for row in rollouts.rows])

        with clock.phase("update"):
            results = []
            for epoch in range(batch.epochs):
                for rows in self._mini_batches(len(rollouts.rows), epoch):
                    mini_batch = experience.select(rows)
                    results.append(self.updater.run(mini_batch, splits=_chunks(range(len(rows)), batch.micro_batch)))

        if experience.old_log_probs is None:
            experience = replace(experience, old_log_probs=results[0].log_probs)

        with clock.phase("sync"):
            staleness = self._version - min(row.sample.weight_version for row in rollouts.rows)
            self._sync_weights()
            sync_gap = self._probe_sync()

        metrics = measure_step(
            step=self.steps_done,
            rollouts=rollouts,
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
        samples = self.engine.generate(greedy_requests(tasks, self.config.rollout.max_tokens))
        texts = [response_text(self.tokenizer, sample.tokens) for sample in samples]
        return statistics.fmean(
            score_response(self._held_out, task, text) for task, text in zip(tasks, texts, strict=True)
        )

    @deterministic_algorithms()
    def update(
        self, trajectories: Sequence[Trajectory], *, splits: Sequence[Sequence[int]], apply: bool = True
    ) -> UpdateResult:
        """One mini-batch through the update, cut by row into `splits`; with `apply=False` nothing is stepped."""
        return self.updater.run(self.assessor.experience(trajectories), splits=splits, apply=apply)

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
        tokens = min(self.config.rollout.max_tokens, _PROBE_TOKENS)
        samples = self.engine.generate(greedy_requests(tasks, tokens))
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


def longest_prompt(config: TrainerConfig, policy: PreTrainedModel) -> int:
    """Most tokens of a prompt that leaves room for a whole response."""
    room = read_capabilities(policy).max_positions - config.rollout.max_tokens
    return min(room, config.rollout.max_prompt_tokens or room)
