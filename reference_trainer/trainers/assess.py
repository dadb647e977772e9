"""From scored responses to experience: all that is fixed before the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from reference_trainer.algorithms.aggregation import token_mean
from reference_trainer.algorithms.corrections import importance_weights
from reference_trainer.algorithms.kl import kl_estimate
from reference_trainer.config import TrainerConfig
from reference_trainer.data.layout import Row, RowBatch
from reference_trainer.models.critic import Critic
from reference_trainer.trainers.experience import (
    Experience,
    Trajectory,
    baselines_of,
    counted_tokens,
    estimate_advantages,
    given_or_computed,
)
from reference_trainer.trainers.forward import in_chunks, response_log_probs, response_values


class Assessor:
    """Policy, reference policy and critic, asked without a graph."""

    def __init__(
        self,
        policy: PreTrainedModel,
        reference: PreTrainedModel | None,
        critic: Critic | None,
        *,
        config: TrainerConfig,
        pad_id: int,
    ) -> None:
        """`reference` is None where nothing asks for its log-probs."""
        self._policy = policy
        self._reference = reference
        self._critic = critic
        self._config = config
        self._pad_id = pad_id

    @torch.no_grad()
    def experience(self, trajectories: Sequence[Trajectory]) -> Experience:
        """Everything that is fixed before the update: old and reference log-probs, values, advantages, weights."""
        algorithm, critic, device = self._config.algorithm, self._critic, self._policy.device
        rows = tuple(trajectory.row for trajectory in trajectories)
        mask = counted_tokens(trajectories, device=device)
        old = None
        if not self._update_computes_them(trajectories):
            old = given_or_computed(
                trajectories, "old_log_probs", lambda rows: self._log_probs_under(self._policy, rows)
            )
        reference = None
        if self._reference is not None:
            frozen = self._reference
            reference = given_or_computed(
                trajectories, "reference_log_probs", lambda rows: self._log_probs_under(frozen, rows)
            )
        values = None
        if critic is not None:
            values = given_or_computed(
                trajectories,
                "values",
                lambda rows: self._in_chunks(lambda batch: response_values(critic, batch), rows),
            )
        kl = None
        if algorithm.kl != "none" and algorithm.kl_placement == "reward":
            assert old is not None
            assert reference is not None
            kl = kl_estimate(algorithm.kl, old, reference)
        advantages, returns = estimate_advantages(
            algorithm,
            scores=torch.tensor([trajectory.score for trajectory in trajectories], device=device),
            groups=[trajectory.group for trajectory in trajectories],
            mask=mask,
            values=values,
            baselines=baselines_of(trajectories, device=device),
            kl=kl,
        )
        weights, weight_metrics = None, {}
        if algorithm.correction != "none":
            assert old is not None
            correction = importance_weights(
                old,
                given_or_computed(trajectories, "rollout_log_probs", lambda rows: old),
                mask,
                kind=algorithm.correction,
                cap=algorithm.correction_cap,
                floor=algorithm.correction_floor,
            )
            weights = correction.weights
            weight_metrics = {name: token_mean(values, mask) for name, values in correction.metrics.items()}
        return Experience(
            rows=rows,
            mask=mask,
            old_log_probs=old,
            reference_log_probs=reference,
            advantages=advantages,
            weights=weights,
            weight_metrics=weight_metrics,
            old_values=values,
            returns=returns,
        )

    def _update_computes_them(self, trajectories: Sequence[Trajectory]) -> bool:
        """Whether the policy's log-probs can be left to the update, which computes the same ones with a graph."""
        algorithm = self._config.algorithm
        return (
            self._config.updates_once_per_rollout
            and algorithm.correction == "none"
            and not (algorithm.kl != "none" and algorithm.kl_placement == "reward")
            and all(trajectory.old_log_probs is None for trajectory in trajectories)
        )

    def _log_probs_under(self, policy: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
        variants = self._config.log_prob
        return self._in_chunks(
            lambda batch: response_log_probs(
                policy,
                batch,
                temperature=self._config.rollout.temperature,
                variant=variants.reference,
                chunk=variants.chunk,
            )[0],
            rows,
        )

    def _in_chunks(self, compute: Callable[[RowBatch], torch.Tensor], rows: Sequence[Row]) -> torch.Tensor:
        return in_chunks(
            compute,
            rows,
            rows_per_batch=self._config.batch.micro_batch,
            pad_id=self._pad_id,
            device=self._policy.device,
        )
