"""The loss of a micro-batch: its terms, their signs and weights, and who gets which tensor.

Every term is a sum over tokens divided by a count of the whole mini-batch, so the micro-batches' shares add up to the
mini-batch's loss and metrics, whatever the cut.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from reference_trainer.algorithms.aggregation import Denominators, aggregate, masked_sum
from reference_trainer.algorithms.distillation import distillation_from_hidden
from reference_trainer.algorithms.kl import kl_estimate
from reference_trainer.algorithms.losses import policy_loss, value_loss
from reference_trainer.algorithms.mtp import mtp_loss
from reference_trainer.config import TrainerConfig
from reference_trainer.data.layout import RowBatch, lay_out
from reference_trainer.models.critic import Critic
from reference_trainer.models.drafter import drafter_log_probs
from reference_trainer.models.outputs import at_predictors, head_of, last_hidden_states
from reference_trainer.trainers.experience import Experience
from reference_trainer.trainers.forward import response_log_probs, response_values, spread


class Objective:
    """Policy, critic, drafter and teacher, and what they are trained for."""

    def __init__(
        self,
        policy: PreTrainedModel,
        critic: Critic | None,
        *,
        config: TrainerConfig,
        pad_id: int,
        teacher: PreTrainedModel | None = None,
    ) -> None:
        self._policy = policy
        self._critic = critic
        self._teacher = teacher
        self._config = config
        self._pad_id = pad_id
        self.tokens: dict[str, torch.Tensor] = {}
        """What the models gave to the last micro-batch's loss, `(B, T)` with its graph: for gradients by token."""

    def __call__(self, part: Experience, *, whole: Denominators) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The micro-batch's share of the mini-batch's loss, a scalar, and its shares of the metrics."""
        algorithm, rollout, variants = self._config.algorithm, self._config.rollout, self._config.log_prob
        batch = lay_out(part.rows, pad_id=self._pad_id, device=part.mask.device)
        mask = part.mask

        def total(values: torch.Tensor) -> torch.Tensor:
            return aggregate(values, mask, algorithm.aggregation, whole=whole, horizon=rollout.max_tokens)

        def token_mean(values: torch.Tensor) -> torch.Tensor:
            return masked_sum(values.detach(), mask) / whole.tokens

        hidden = last_hidden_states(self._policy.model, batch)  # (B, L, H)
        log_probs, entropies = response_log_probs(
            self._policy,
            batch,
            temperature=rollout.temperature,
            variant=variants.actor,
            chunk=variants.chunk,
            hidden=hidden,
        )
        self.tokens = {"log_probs": log_probs, "entropies": entropies}
        old_log_probs = log_probs.detach() if part.old_log_probs is None else part.old_log_probs
        if algorithm.entropy_coefficient == 0:
            entropies = entropies.detach()  # told, and not differentiated
        loss = -algorithm.entropy_coefficient * total(entropies)
        terms = {"entropy": token_mean(entropies)}
        if algorithm.policy_loss != "none":
            surrogate = policy_loss(
                algorithm.policy_loss,
                log_probs,
                old_log_probs,
                part.advantages,
                mask,
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                dual_clip=algorithm.dual_clip,
                weights=part.weights,
            )
            policy_term = total(surrogate.loss)
            loss = loss + policy_term
            terms["policy_loss"] = policy_term.detach()
            terms |= {name: token_mean(values) for name, values in surrogate.metrics.items()}
        if algorithm.kl != "none" and algorithm.kl_placement == "loss":
            assert part.reference_log_probs is not None
            kl_term = total(kl_estimate(algorithm.kl, log_probs, part.reference_log_probs))
            loss = loss + algorithm.kl_coefficient * kl_term
            terms["kl_loss"] = kl_term.detach()
        if algorithm.distillation is not None:
            distance = self._distance_to_teacher(batch, hidden)
            self.tokens["divergence"] = distance
            teacher_term = total(distance)
            loss = loss + algorithm.distillation.coefficient * teacher_term
            terms["distillation_loss"] = teacher_term.detach()
        if self._critic is not None:
            assert part.old_values is not None
            assert part.returns is not None
            values = response_values(self._critic, batch)
            self.tokens["values"] = values
            squares = value_loss(values, part.old_values, part.returns, mask, value_clip=algorithm.value_clip)
            value_term = total(squares.loss)
            loss = loss + algorithm.value_coefficient * value_term
            terms["value_loss"] = value_term.detach()
            terms |= {name: token_mean(values) for name, values in squares.metrics.items()}
        drafting = self._config.model.drafter
        if drafting is not None and drafting.loss_coefficient > 0:
            draft_term = total(self._draft_loss(batch, hidden))
            loss = loss + drafting.loss_coefficient * draft_term
            terms["mtp_loss"] = draft_term.detach()
        return loss, terms

    def _distance_to_teacher(self, batch: RowBatch, hidden: torch.Tensor) -> torch.Tensor:
        """Divergence from the teacher at each response token, `(B, T)`."""
        settings, variants = self._config.algorithm.distillation, self._config.log_prob
        assert settings is not None
        assert self._teacher is not None
        with torch.no_grad():
            taught = at_predictors(last_hidden_states(self._teacher.model, batch), batch)
        ours, theirs = head_of(self._policy), head_of(self._teacher)
        distance = distillation_from_hidden(
            at_predictors(hidden, batch),
            ours.weight,
            taught,
            theirs.weight,
            softcap=ours.softcap,
            teacher_softcap=theirs.softcap,
            temperature=self._config.rollout.temperature,
            kind=settings.divergence,
            jsd_beta=settings.jsd_beta,
            top_k=settings.top_k,
            tail=settings.tail,
            variant=variants.distillation,
            chunk=variants.chunk,
        )
        return spread(distance, batch)

    def _draft_loss(self, batch: RowBatch, hidden: torch.Tensor) -> torch.Tensor:
        """The drafter's loss at each response token that it can predict, `(B, T)`, 0 at the others."""
        variants = self._config.log_prob
        log_probs, predictable = drafter_log_probs(
            self._policy,
            hidden,
            batch,
            temperature=self._config.rollout.temperature,
            variant=variants.actor,
            chunk=variants.chunk,
        )
        return mtp_loss(log_probs, predictable)
