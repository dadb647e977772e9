"""One optimizer update from one mini-batch, cut into micro-batches that never change the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import PreTrainedModel

from reference_trainer.algorithms.aggregation import Denominators, denominators
from reference_trainer.config import TrainerConfig
from reference_trainer.models.critic import Critic
from reference_trainer.trainers.experience import Experience
from reference_trainer.trainers.objective import Objective
from reference_trainer.trainers.parts import trained_parts
from reference_trainer.trainers.schedule import learning_rate_factor


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """Gradients are before clipping, and empty when they were applied."""

    loss: float
    metrics: dict[str, float]
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    """By parameter name, the critic's behind `critic.`."""
    token_gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of the loss by what the models gave to it (`log_probs`, `entropies`, `values` …), `(B, T)`."""
    log_probs: torch.Tensor | None = None
    """Of the policy before the update, `(B, T)`, 0 where nothing counts; only where the experience had none."""


class Updater:
    """Policy, critic and drafter, each with its optimizer."""

    def __init__(
        self,
        policy: PreTrainedModel,
        critic: Critic | None,
        *,
        config: TrainerConfig,
        pad_id: int,
        teacher: PreTrainedModel | None = None,
    ) -> None:
        self.updates = 0
        """Mini-batches so far; the schedule counts by it."""
        self._config = config
        self._objective = Objective(policy, critic, config=config, pad_id=pad_id, teacher=teacher)
        self._parts = trained_parts(policy, critic)
        self._optimizers = {
            part: torch.optim.AdamW(
                [parameter for _, parameter in parameters],
                lr=self._peak(part),
                betas=config.optimizer.betas,
                weight_decay=config.optimizer.weight_decay,
            )
            for part, parameters in self._parts.items()
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
        by_token: dict[str, torch.Tensor] = {}
        before: torch.Tensor | None = None
        for split in splits:
            part = experience.select(split)
            if not part.mask.any():
                continue  # every term of it is 0
            loss, terms = self.loss(part, whole=whole)
            watched = {} if apply else self._objective.tokens
            for tensor in watched.values():
                tensor.retain_grad()
            loss.backward()
            if experience.old_log_probs is None:
                found = self._objective.tokens["log_probs"].detach()
                before = found.new_zeros(experience.mask.shape) if before is None else before
                before[list(split), : found.shape[1]] = found
            for name, value in {"loss": loss, **terms}.items():
                metrics[name] = metrics.get(name, 0.0) + value.item()
            for name, tensor in watched.items():
                rows = by_token.setdefault(name, torch.zeros(experience.mask.shape, dtype=tensor.dtype))
                if tensor.grad is not None:
                    rows[list(split), : tensor.shape[1]] = tensor.grad
        self._objective.tokens = {}  # and with it the last graph
        if before is None and experience.old_log_probs is None:
            before = torch.zeros(experience.mask.shape, device=experience.mask.device)  # nothing counts
        if not apply:
            gradients = dict(self._gradients())
            self._forget_gradients()
            return UpdateResult(
                loss=metrics.get("loss", 0.0),
                metrics=metrics,
                gradients=gradients,
                token_gradients=by_token,
                log_probs=before,
            )
        metrics |= self._step(moves=whole.tokens > 0)
        self._forget_gradients()
        return UpdateResult(loss=metrics.get("loss", 0.0), metrics=metrics, log_probs=before)

    def loss(self, part: Experience, *, whole: Denominators) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The micro-batch's share of the mini-batch's loss, a scalar, and its shares of the metrics."""
        return self._objective(part, whole=whole)

    def _peak(self, part: str) -> float:
        settings = self._config.optimizer
        return settings.critic_lr if part == "critic" else settings.lr

    def _step(self, *, moves: bool) -> dict[str, float]:
        """Clip and step each optimizer; the schedule goes on even when nothing moves."""
        settings = self._config.optimizer
        factor = learning_rate_factor(
            settings.schedule, update=self.updates, warmup=settings.warmup_steps, total=self._config.total_updates
        )
        metrics = {"learning_rate": settings.lr * factor}
        for part, parameters in self._parts.items():
            # Without tokens there are no gradients, yet momentum and weight decay would move the parameters.
            clipped = nn.utils.clip_grad_norm_([parameter for _, parameter in parameters], settings.max_grad_norm)
            norm = clipped.item() if moves else 0.0
            if not math.isfinite(norm):
                raise FloatingPointError(
                    f"the {part}'s gradient norm is {norm} in update {self.updates}; nothing was stepped"
                )
            metrics["grad_norm" if part == "policy" else f"{part}_grad_norm"] = norm
        for part, optimizer in self._optimizers.items() if moves else ():
            for group in optimizer.param_groups:
                group["lr"] = self._peak(part) * factor
            optimizer.step()
        self.updates += 1
        return metrics

    def _forget_gradients(self) -> None:
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def _gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for parameters in self._parts.values():
            for name, parameter in parameters:
                yield name, parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def _refuse_bad_splits(splits: Sequence[Sequence[int]], *, rows: int) -> None:
    named = sorted(index for split in splits for index in split)
    if named != list(range(rows)):
        raise ValueError(f"the splits {[list(split) for split in splits]} do not hold each of the {rows} rows once")
