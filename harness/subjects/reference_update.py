"""One mini-batch through the reference's update, outside its training loop, leaving the trainer as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.subjects.protocol import TrainSample, UpdateAnswer
from reference_trainer.config import AlgorithmConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.determinism import deterministic_algorithms
from reference_trainer.rollout.engine import FinishReason, Sample
from reference_trainer.trainers import measure
from reference_trainer.trainers.assess import Assessor
from reference_trainer.trainers.collect import Rollouts, ScoredSample
from reference_trainer.trainers.experience import Experience, Trajectory
from reference_trainer.trainers.forward import response_log_probs, response_values
from reference_trainer.trainers.phases import PhaseClock
from reference_trainer.trainers.sync import SyncTrainer
from reference_trainer.trainers.update import Updater, UpdateResult

_PHASES = ("rollout", "reward", "logprob", "update", "sync")


class UpdateProbe:
    """Fresh optimizers for each update, over the trainer's own policy and critic."""

    def __init__(self, trainer: SyncTrainer) -> None:
        self._trainer = trainer
        self._modules = {"policy": trainer.policy} | ({"critic": trainer.critic} if trainer.critic is not None else {})
        self._start = {
            name: {key: value.clone() for key, value in module.state_dict().items()}
            for name, module in self._modules.items()
        }

    @deterministic_algorithms()
    def update(
        self,
        samples: Sequence[TrainSample],
        *,
        splits: Sequence[Sequence[int]],
        apply: bool,
        algorithm: Mapping[str, Any],
    ) -> UpdateAnswer:
        """As the protocol says; `algorithm` overrides settings of the cell's algorithm."""
        trainer = self._trainer
        config = trainer.config.model_copy(
            update={"algorithm": AlgorithmConfig.model_validate({**trainer.config.algorithm.model_dump(), **algorithm})}
        )
        pad_id = trainer.tokenizer.pad_token_id
        updater = Updater(trainer.policy, trainer.critic, config=config, pad_id=pad_id, teacher=trainer.teacher)
        assessor = Assessor(trainer.policy, trainer.reference, trainer.critic, config=config, pad_id=pad_id)
        experience = assessor.experience([_trajectory(sample) for sample in samples])
        before = [parameter.detach().clone() for parameter in self._parameters()]
        result = updater.run(experience, splits=splits, apply=apply)
        metrics = dict(result.metrics)
        if apply:
            if experience.old_log_probs is None:
                experience = replace(experience, old_log_probs=result.log_probs)
            metrics |= self._step_metrics(samples, experience, result)
        return UpdateAnswer(
            loss=result.loss,
            metrics=metrics,
            gradients={name: gradient.double().numpy() for name, gradient in result.gradients.items()},
            token_gradients={name: gradient.double().numpy() for name, gradient in result.token_gradients.items()},
            parameter_change=max(
                (after.detach() - was).abs().max().item() for after, was in zip(self._parameters(), before, strict=True)
            ),
            parameters_finite=all(bool(parameter.isfinite().all()) for parameter in self._parameters()),
        )

    @torch.no_grad()
    def values(self, rows: Sequence[Row]) -> list[torch.Tensor] | None:
        """The critic's value before each response token of each row."""
        trainer = self._trainer
        if trainer.critic is None:
            return None
        batch = lay_out(rows, pad_id=trainer.tokenizer.pad_token_id, device=trainer.policy.device)
        return _by_row(response_values(trainer.critic, batch), rows)

    @torch.no_grad()
    def entropies(self, rows: Sequence[Row], *, temperature: float) -> list[torch.Tensor]:
        """The policy's entropy at each response token of each row."""
        trainer = self._trainer
        batch = lay_out(rows, pad_id=trainer.tokenizer.pad_token_id, device=trainer.policy.device)
        return _by_row(response_log_probs(trainer.policy, batch, temperature=temperature)[1], rows)

    def reset(self) -> None:
        """Put the parameters back; the engine was never told of any change."""
        for name, module in self._modules.items():
            module.load_state_dict(self._start[name])

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for module in self._modules.values() for parameter in module.parameters()]

    def _step_metrics(
        self, samples: Sequence[TrainSample], experience: Experience, result: UpdateResult
    ) -> dict[str, float]:
        """What the training loop would report of a step with this one update."""
        clock = PhaseClock(self._trainer.platform)
        for name in _PHASES:
            with clock.phase(name):
                pass
        rows = [
            ScoredSample(
                trajectory=_trajectory(sample),
                sample=Sample(
                    tokens=tuple(sample.response),
                    log_probs=tuple(0.0 for _ in sample.response),
                    finish_reason=FinishReason.LENGTH if sample.response else FinishReason.ABORT,
                    weight_version=0,
                ),
                score=sample.score,
                penalty=0.0,
            )
            for sample in samples
        ]
        reported = measure.measure_step(
            step=0,
            rollouts=Rollouts(rows=tuple(rows), dropped_prompts=0, discarded_groups=0),
            experience=experience,
            results=[result],
            staleness=0,
            sync_gap=0.0,
            clock=clock,
            memory=self._trainer.platform.memory(),
        )
        return {name: value for name, value in reported.as_dict().items() if value is not None}


def _by_row(values: torch.Tensor, rows: Sequence[Row]) -> list[torch.Tensor]:
    return [found[: len(row.response)] for found, row in zip(values, rows, strict=True)]


def _trajectory(sample: TrainSample) -> Trajectory:
    return Trajectory(
        prompt=tuple(sample.prompt),
        response=tuple(sample.response),
        score=sample.score,
        group=sample.group,
        baseline=0.0 if sample.baseline is None else sample.baseline,
        old_log_probs=sample.old_log_probs,
        reference_log_probs=sample.reference_log_probs,
        rollout_log_probs=sample.rollout_log_probs,
        values=sample.values,
        mask=sample.mask,
    )
