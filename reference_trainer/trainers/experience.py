"""A rollout batch as the update sees it: scored responses with their advantages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields

import torch

from reference_trainer.algorithms.advantages import gae, group_advantages, whiten
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
    old_log_probs: tuple[float, ...] | None = None
    """Of the policy that sampled it; None: the trainer computes them with its current policy."""
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
    old_log_probs: torch.Tensor
    reference_log_probs: torch.Tensor
    advantages: torch.Tensor
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None

    def select(self, indices: Sequence[int]) -> Experience:
        """These rows, in this order, cut to their longest response."""
        rows = tuple(self.rows[index] for index in indices)
        longest = max((len(row.response) for row in rows), default=0)
        index = torch.tensor(list(indices), dtype=torch.int64, device=self.mask.device)
        tensors = {
            field.name: value[index, :longest]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return Experience(rows=rows, **tensors)


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


def given_log_probs(
    trajectories: Sequence[Trajectory], compute: Callable[[Sequence[Row]], torch.Tensor]
) -> torch.Tensor:
    """Old log-probs `(B, T)`: those that came with the rows, and `compute` for all rows when one came without."""
    if not trajectories or any(trajectory.old_log_probs is None for trajectory in trajectories):
        computed = compute([trajectory.row for trajectory in trajectories])
    else:
        longest = max(len(trajectory.response) for trajectory in trajectories)
        computed = torch.zeros(len(trajectories), longest)
    for index, trajectory in enumerate(trajectories):
        if trajectory.old_log_probs is not None:
            if len(trajectory.old_log_probs) != len(trajectory.response):
                raise ValueError(
                    f"row {index} has {len(trajectory.response)} tokens but {len(trajectory.old_log_probs)} log-probs"
                )
            computed[index, : len(trajectory.response)] = torch.tensor(trajectory.old_log_probs)
    return computed


def estimate_advantages(
    algorithm: AlgorithmConfig,
    *,
    scores: torch.Tensor,
    groups: Sequence[Hashable],
    mask: torch.Tensor,
    values: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Advantages `(B, T)` of the configured estimator, and returns with a critic; scores `(B,)`, mask `(B, T)`."""
    if algorithm.advantage == "grpo":
        per_row = group_advantages(
            scores,
            groups,
            std_ddof=algorithm.std_ddof,
            std_eps=algorithm.std_eps,
            divide_by_std=algorithm.divide_by_std,
            singleton=algorithm.singleton,
        )
        return torch.where(mask, per_row[:, None], 0.0), None
    assert values is not None
    advantages, returns = gae(score_at_last_token(scores, mask), values, mask, gamma=algorithm.gamma, lam=algorithm.lam)
    if algorithm.whiten:
        advantages = whiten(advantages, mask, std_ddof=algorithm.std_ddof, std_eps=algorithm.std_eps)
    return advantages, returns


def score_at_last_token(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rewards `(B, T)`: each row's score `(B,)` at its last counted token; a row without one gets none."""
    last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    return torch.where(last, scores[:, None], 0.0)
