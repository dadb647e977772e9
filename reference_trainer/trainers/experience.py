"""A rollout batch as the update sees it: scored responses with their advantages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from reference_trainer.algorithms.advantages import (
    gae,
    group_advantages,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rloo,
    whiten,
)
from reference_trainer.algorithms.kl import kl_penalised_rewards
from reference_trainer.config import AlgorithmConfig
from reference_trainer.data.images import Image
from reference_trainer.data.layout import Row


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One scored response."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    score: float
    group: Hashable
    """Whose samples it is compared with: those of equal group."""
    baseline: float | None = None
    """Score of the greedy response to the same prompt (ReMax)."""
    old_log_probs: tuple[float, ...] | None = None
    """Of the policy before the update; None: the trainer computes them with its current policy."""
    reference_log_probs: tuple[float, ...] | None = None
    """Of the reference policy; None: the trainer computes them with its own."""
    rollout_log_probs: tuple[float, ...] | None = None
    """As the engine told them, which an off-policy correction compares with the old ones."""
    values: tuple[float, ...] | None = None
    """Of the critic before the update; None: the trainer computes them with its own."""
    mask: tuple[int, ...] | None = None
    """Which response tokens count (1); None counts them all."""
    images: tuple[Image, ...] = ()
    """Of the prompt."""

    @property
    def row(self) -> Row:
        return Row(self.prompt, self.response, self.images)


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Tensors are `(B, T)` and aligned with the response; what a run does not need is None."""

    rows: tuple[Row, ...]
    mask: torch.Tensor
    """bool: the token exists and counts."""
    old_log_probs: torch.Tensor | None
    """None where they are those that the update itself begins with."""
    advantages: torch.Tensor
    reference_log_probs: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    """Off-policy correction of each token's surrogate."""
    weight_metrics: Mapping[str, float] = field(default_factory=dict)
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None

    def select(self, indices: Sequence[int]) -> Experience:
        """These rows, in this order, cut to their longest response."""
        rows = tuple(self.rows[index] for index in indices)
        longest = max((len(row.response) for row in rows), default=0)
        index = torch.tensor(list(indices), dtype=torch.int64, device=self.mask.device)
        tensors: dict[str, Any] = {
            column.name: value[index, :longest]
            for column in fields(self)
            if isinstance(value := getattr(self, column.name), torch.Tensor)
        }
        return replace(self, rows=rows, **tensors)


def counted_tokens(trajectories: Sequence[Trajectory], *, device: torch.device) -> torch.Tensor:
    """Mask `(B, T)` bool of the response tokens that exist and count; ValueError for a mask of another length."""
    longest = max((len(trajectory.response) for trajectory in trajectories), default=0)
    rows = []
    for index, trajectory in enumerate(trajectories):
        counts = trajectory.mask if trajectory.mask is not None else (1,) * len(trajectory.response)
        if len(counts) != len(trajectory.response):
            raise ValueError(f"row {index} has {len(trajectory.response)} tokens but a mask of {len(counts)}")
        rows.append([*counts, *[0] * (longest - len(counts))])
    return torch.tensor(rows, dtype=torch.bool, device=device).view(len(rows), longest)


def given_or_computed(
    trajectories: Sequence[Trajectory], name: str, compute: Callable[[Sequence[Row]], torch.Tensor]
) -> torch.Tensor:
    """The field `name` of the trajectories as `(B, T)`: what came with a row, and what `compute` says of the others.

    Raises ValueError when a row came with another number of values than it has tokens.
    """
    given = [getattr(trajectory, name) for trajectory in trajectories]
    if not trajectories or any(values is None for values in given):
        answer = compute([trajectory.row for trajectory in trajectories])
    else:
        longest = max(len(trajectory.response) for trajectory in trajectories)
        answer = torch.zeros(len(trajectories), longest)
    for index, (trajectory, values) in enumerate(zip(trajectories, given, strict=True)):
        if values is not None:
            if len(values) != len(trajectory.response):
                raise ValueError(f"row {index} has {len(trajectory.response)} tokens but {len(values)} {name}")
            answer[index, : len(values)] = torch.tensor(values)
    return answer


def baselines_of(trajectories: Sequence[Trajectory], *, device: torch.device) -> torch.Tensor | None:
    """Greedy baselines `(B,)`; None unless every row has one."""
    baselines = [trajectory.baseline for trajectory in trajectories if trajectory.baseline is not None]
    return torch.tensor(baselines, device=device) if len(baselines) == len(trajectories) else None


def estimate_advantages(
    algorithm: AlgorithmConfig,
    *,
    scores: torch.Tensor,
    groups: Sequence[Hashable],
    mask: torch.Tensor,
    values: torch.Tensor | None = None,
    baselines: torch.Tensor | None = None,
    kl: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Advantages `(B, T)` of the configured estimator, and returns with a critic.

    Scores and greedy baselines are `(B,)`; mask, values and the KL that is taken from the rewards `(B, T)`.
    """
    match algorithm.advantage:
        case "gae" | "reinforce_pp":
            rewards = score_at_last_token(scores, mask)
            if kl is not None:
                rewards = kl_penalised_rewards(rewards, kl, mask, coefficient=algorithm.kl_coefficient)
            returns = None
            if algorithm.advantage == "gae":
                assert values is not None
                advantages, returns = gae(rewards, values, mask, gamma=algorithm.gamma, lam=algorithm.lam)
            else:
                advantages = reinforce_pp(rewards, mask, gamma=algorithm.gamma)
            return _whitened(advantages, mask, algorithm), returns
        case "grpo":
            per_row = group_advantages(
                scores,
                groups,
                std_ddof=algorithm.std_ddof,
                std_eps=algorithm.std_eps,
                divide_by_std=algorithm.divide_by_std,
                singleton=algorithm.singleton,
            )
        case "rloo":
            per_row = rloo(scores, groups, singleton=algorithm.singleton)
        case "reinforce_pp_baseline":
            per_row = reinforce_pp_baseline(scores, groups, singleton=algorithm.singleton)
            return _whitened(_over_tokens(per_row, mask), mask, algorithm), None
        case "remax":
            if baselines is None:
                raise ValueError("advantage remax needs the score of a greedy response to each row's prompt")
            per_row = remax(scores, baselines)
        case "none":
            per_row = torch.zeros_like(scores)
    return _over_tokens(per_row, mask), None


def _over_tokens(per_row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Each row's number `(B,)` at each of its counted tokens, `(B, T)`."""
    return torch.where(mask, per_row[:, None], 0.0)


def _whitened(advantages: torch.Tensor, mask: torch.Tensor, algorithm: AlgorithmConfig) -> torch.Tensor:
    if not algorithm.whiten:
        return advantages
    return whiten(advantages, mask, std_ddof=algorithm.std_ddof, std_eps=algorithm.std_eps)


def score_at_last_token(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rewards `(B, T)`: each row's score `(B,)` at its last counted token; a row without one gets none."""
    last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    return torch.where(last, scores[:, None], 0.0)
