"""One mini-batch through the reference's update, outside its training loop, leaving the trainer as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from harness.subjects.protocol import TrainSample, UpdateAnswer
from reference_trainer.config import AlgorithmConfig
from reference_trainer.determinism import deterministic_algorithms
from reference_trainer.rollout.engine import FinishReason, Sample
from reference_trainer.trainers import measure
from reference_trainer.trainers.experience import Experience, Trajectory
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
        updater = Updater(trainer.policy, trainer.critic, config=config, pad_id=trainer.tokenizer.pad_token_id)
        experience = trainer.experience([_trajectory(sample) for sample in samples])
        before = [parameter.detach().clone() for parameter in self._parameters()]
        result = updater.run(experience, splits=splits, apply=apply)
        metrics = dict(result.metrics)
        if apply:
            metrics |= self._step_metrics(samples, experience, result)
        return UpdateAnswer(
            loss=result.loss,
            metrics=metrics,
            gradients={name: gradient.double().numpy() for name, gradient in result.gradients.items()},
            parameter_change=max(
                (after.detach() - was).abs().max().item() for after, was in zip(self._parameters(), before, strict=True)
            ),
            parameters_finite=all(bool(parameter.isfinite().all()) for parameter in self._parameters()),
        )

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
        reported = measure.measure_step(
            step=0,
            samples=[
                Sample(
                    tokens=tuple(sample.response),
                    log_probs=tuple(0.0 for _ in sample.response),
                    finish_reason=FinishReason.LENGTH if sample.response else FinishReason.ABORT,
                    weight_version=0,
                )
                for sample in samples
            ],
            scores=[sample.score for sample in samples],
            groups=[sample.group for sample in samples],
            experience=experience,
            results=[result],
            staleness=0,
            sync_gap=0.0,
            clock=clock,
            memory=self._trainer.platform.memory(),
        )
        return {name: value for name, value in reported.as_dict().items() if value is not None}


def _trajectory(sample: TrainSample) -> Trajectory:
    return Trajectory(
        prompt=tuple(sample.prompt),
        response=tuple(sample.response),
        score=sample.score,
        group=sample.group,
        old_log_probs=sample.old_log_probs,
        mask=sample.mask,
    )
