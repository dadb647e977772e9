"""One optimizer update from one mini-batch, cut into micro-batches that never change the result.

Every term of the loss is a sum divided by a count of the whole mini-batch, so the gradients of the micro-batches add
up to the gradient of the mini-batch, whatever the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import PreTrainedModel

from reference_trainer.algorithms.aggregation import Denominators, aggregate, denominators, masked_sum
from reference_trainer.algorithms.kl import kl_estimate
from reference_trainer.algorithms.losses import ppo_clip_loss, value_loss
from reference_trainer.config import TrainerConfig
from reference_trainer.data.layout import lay_out
from reference_trainer.models.critic import Critic
from reference_trainer.trainers.experience import Experience
from reference_trainer.trainers.forward import response_log_probs, response_values
from reference_trainer.trainers.schedule import learning_rate_factor


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """`gradients` by parameter name, the critic's behind `critic.`, before clipping; empty when they were applied."""

    loss: float
    metrics: dict[str, float]
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


class Updater:
    """Policy, critic and their optimizers."""

    def __init__(self, policy: PreTrainedModel, critic: Critic | None, *, config: TrainerConfig, pad_id: int) -> None:
        self.policy = policy
        self.critic = critic
        self.updates = 0
        """Mini-batches so far; the schedule counts by it."""
        self._config = config
        self._pad_id = pad_id
        optimizer = config.optimizer
        self._peaks = {"policy": optimizer.lr, "critic": optimizer.critic_lr}
        self._modules: dict[str, nn.Module] = {"policy": policy} | ({"critic": critic} if critic is not None else {})
        self._optimizers = {
            name: torch.optim.AdamW(
                module.parameters(),
                lr=self._peaks[name],
                betas=optimizer.betas,
                weight_decay=optimizer.weight_decay,
            )
            for name, module in self._modules.items()
        }

    def run(self, experience: Experience, *, splits: Sequence[Sequence[int]], apply: bool = True) -> UpdateResult:
        """Update from the mini-batch `experience`, cut by row into `splits`.

        With `apply=False` gradients are computed and returned, and parameters, optimizers and schedule stay as they
        are. A mini-batch without counted tokens moves nothing. Raises ValueError unless the splits hold each row
        once, FloatingPointError when a gradient is not finite.
        """
        _refuse_bad_splits(splits, rows=len(experience.rows))
        whole = denominators(experience.mask, empty_row=self._config.algorithm.empty_row)
        self._forget_gradients()
        metrics: dict[str, float] = {}
        for split in splits:
            part = experience.select(split)
            if not part.mask.any():
                continue  # every term of it is 0
            loss, terms = self.loss(part, whole=whole)
            loss.backward()
            for name, value in {"loss": loss, **terms}.items():
                metrics[name] = metrics.get(name, 0.0) + value.item()
        if not apply:
            gradients = dict(self._gradients())
            self._forget_gradients()
            return UpdateResult(loss=metrics.get("loss", 0.0), metrics=metrics, gradients=gradients)
        metrics |= self._step(moves=whole.tokens > 0)
        self._forget_gradients()
        return UpdateResult(loss=metrics.get("loss", 0.0), metrics=metrics)

    def loss(self, part: Experience, *, whole: Denominators) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The micro-batch's share of the mini-batch's loss, a scalar, and its shares of the metrics."""
        algorithm, rollout = self._config.algorithm, self._config.rollout
        batch = lay_out(part.rows, pad_id=self._pad_id, device=part.mask.device)
        mask = part.mask

        def total(values: torch.Tensor) -> torch.Tensor:
            return aggregate(values, mask, algorithm.aggregation, whole=whole, horizon=rollout.max_tokens)

        def token_mean(values: torch.Tensor) -> torch.Tensor:
            return masked_sum(values.detach(), mask) / whole.tokens

        log_probs, entropies = response_log_probs(self.policy, batch, temperature=rollout.temperature)
        policy_term = ppo_clip_loss(
            log_probs,
            part.old_log_probs,
            part.advantages,
            mask,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
        )
        policy_loss = total(policy_term.loss)
        loss = policy_loss - algorithm.entropy_coefficient * total(entropies)
        terms = {"policy_loss": policy_loss.detach(), "entropy": token_mean(entropies)}
        terms |= {name: token_mean(values) for name, values in policy_term.metrics.items()}
        if algorithm.kl != "none":
            kl_loss = total(kl_estimate(algorithm.kl, log_probs, part.reference_log_probs))
            loss = loss + algorithm.kl_coefficient * kl_loss
            terms["kl_loss"] = kl_loss.detach()
        if self.critic is not None:
            assert part.old_values is not None
            assert part.returns is not None
            values = response_values(self.critic, batch)
            value_term = value_loss(values, part.old_values, part.returns, mask, value_clip=algorithm.value_clip)
            critic_loss = total(value_term.loss)
            loss = loss + algorithm.value_coefficient * critic_loss
            terms["value_loss"] = critic_loss.detach()
            terms |= {name: token_mean(values) for name, values in value_term.metrics.items()}
        return loss, terms

    def _step(self, *, moves: bool) -> dict[str, float]:
        """Clip and step each optimizer; the schedule goes on even when nothing moves."""
        settings = self._config.optimizer
        factor = learning_rate_factor(
            settings.schedule, update=self.updates, warmup=settings.warmup_steps, total=self._config.total_updates
        )
        metrics = {"learning_rate": settings.lr * factor, "grad_norm": 0.0}
        for name, module in self._modules.items():
            # Without tokens there are no gradients, yet momentum and weight decay would move the parameters.
            norm = nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm).item() if moves else 0.0
            if norm != norm or norm == float("inf"):
                raise FloatingPointError(
                    f"the {name}'s gradient norm is {norm} in update {self.updates}; nothing was stepped"
                )
            metrics["grad_norm" if name == "policy" else "critic_grad_norm"] = norm
            if moves:
                for group in self._optimizers[name].param_groups:
                    group["lr"] = self._peaks[name] * factor
        for optimizer in self._optimizers.values() if moves else ():
            optimizer.step()
        self.updates += 1
        return metrics

    def _forget_gradients(self) -> None:
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def _gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for prefix, module in (("", self.policy), ("critic.", self.critic)):
            for name, parameter in module.named_parameters() if module is not None else ():
                yield prefix + name, parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def _refuse_bad_splits(splits: Sequence[Sequence[int]], *, rows: int) -> None:
    named = sorted(index for split in splits for index in split)
    if named != list(range(rows)):
        raise ValueError(f"the splits {[list(split) for split in splits]} do not hold each of the {rows} rows once")
