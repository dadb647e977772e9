"""The metrics of a step, from what its phases left."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import zip_longest

import torch

from reference_trainer.algorithms.advantages import degenerate_groups
from reference_trainer.algorithms.aggregation import token_mean
from reference_trainer.algorithms.kl import kl_k3
from reference_trainer.metrics import StepMetrics
from reference_trainer.platforms.base import Memory
from reference_trainer.rollout.engine import FinishReason, Sample
from reference_trainer.trainers.collect import Rollouts
from reference_trainer.trainers.experience import Experience
from reference_trainer.trainers.phases import PhaseClock
from reference_trainer.trainers.update import UpdateResult


def measure_step(
    *,
    step: int,
    rollouts: Rollouts,
    experience: Experience,
    results: Sequence[UpdateResult],
    staleness: int,
    sync_gap: float,
    clock: PhaseClock,
    memory: Memory,
) -> StepMetrics:
    """All figures are finite when some or all responses are empty."""
    samples = [row.sample for row in rollouts.rows]
    scores = [row.score for row in rollouts.rows]
    shaped = [row.trajectory.score for row in rollouts.rows]
    groups = [row.trajectory.group for row in rollouts.rows]
    penalties = [row.penalty for row in rollouts.rows]
    proposed, accepted = draft_counts(samples)
    lengths = [len(sample.tokens) for sample in samples]
    prompt_lengths = [len(row.prompt) for row in experience.rows]
    assert experience.old_log_probs is not None
    gaps = log_prob_gaps(samples, experience.old_log_probs)
    return StepMetrics(
        step=step,
        reward=statistics.fmean(scores),
        reward_std=statistics.pstdev(scores),
        groups=len(set(groups)),
        degenerate_groups=degenerate_groups(torch.tensor(shaped, dtype=torch.float64), groups),
        discarded_groups=rollouts.discarded_groups,
        dropped_prompts=rollouts.dropped_prompts,
        overlong_penalty=statistics.fmean(penalties) if any(penalties) else 0.0,
        kl=_kl(experience),
        entropy=_mean(results, "entropy"),
        logprob_gap=max(gaps, default=0.0),
        logprob_gap_mean=statistics.fmean(gaps) if gaps else 0.0,
        sync_gap=sync_gap,
        loss=_mean(results, "loss"),
        policy_loss=_mean_or_none(results, "policy_loss"),
        value_loss=_mean_or_none(results, "value_loss"),
        distillation_loss=_mean_or_none(results, "distillation_loss"),
        mtp_loss=_mean_or_none(results, "mtp_loss"),
        correction_weight=experience.weight_metrics.get("correction_weight"),
        correction_fraction=experience.weight_metrics.get("correction_fraction"),
        clip_fraction=_mean_or_none(results, "clip_fraction"),
        value_clip_fraction=_mean_or_none(results, "value_clip_fraction"),
        approx_kl=_mean_or_none(results, "approx_kl"),
        grad_norm=_mean(results, "grad_norm"),
        critic_grad_norm=_mean_or_none(results, "critic_grad_norm"),
        drafter_grad_norm=_mean_or_none(results, "drafter_grad_norm"),
        learning_rate=results[-1].metrics["learning_rate"],
        updates=len(results),
        staleness=staleness,
        tokens=sum(prompt_lengths) + sum(lengths),
        response_tokens=sum(lengths),
        prompt_length=statistics.fmean(prompt_lengths),
        response_length=statistics.fmean(lengths),
        response_length_max=max(lengths),
        truncated_fraction=sum(sample.finish_reason is FinishReason.LENGTH for sample in samples) / len(samples),
        rollout_seconds=clock["rollout"],
        reward_seconds=clock["reward"],
        logprob_seconds=clock["logprob"],
        update_seconds=clock["update"],
        sync_seconds=clock["sync"],
        step_seconds=clock.total,
        live_bytes=memory.used,
        peak_bytes=memory.peak,
        drafts_proposed=sum(proposed) if proposed else None,
        drafts_accepted=sum(accepted) if proposed else None,
        draft_acceptance=tuple(kept / made if made else 0.0 for kept, made in zip(accepted, proposed, strict=True)),
        timeouts=None,
    )


def draft_counts(samples: Sequence[Sample]) -> tuple[list[int], list[int]]:
    """Drafts proposed and accepted over all samples, by draft position; empty without a drafter."""
    proposed = [sum(counts) for counts in zip_longest(*(sample.drafted for sample in samples), fillvalue=0)]
    accepted = [sum(counts) for counts in zip_longest(*(sample.accepted for sample in samples), fillvalue=0)]
    return proposed, accepted


def _kl(experience: Experience) -> float | None:
    if experience.reference_log_probs is None or experience.old_log_probs is None:
        return None
    return token_mean(kl_k3(experience.old_log_probs, experience.reference_log_probs), experience.mask)


def log_prob_gaps(samples: Sequence[Sample], log_probs: torch.Tensor) -> list[float]:
    """|log-prob of the trainer - of the engine| for each sampled token; the trainer's are `(B, T)`."""
    return [
        abs(ours - theirs)
        for sample, row in zip(samples, log_probs.tolist(), strict=True)
        for ours, theirs in zip(row, sample.log_probs, strict=False)  # the row is padded to the longest response
    ]


def _mean(results: Sequence[UpdateResult], name: str) -> float:
    """A mini-batch without tokens tells no loss: it counts as 0, as it moved nothing."""
    return statistics.fmean(result.metrics.get(name, 0.0) for result in results)


def _mean_or_none(results: Sequence[UpdateResult], name: str) -> float | None:
    return _mean(results, name) if any(name in result.metrics for result in results) else None
