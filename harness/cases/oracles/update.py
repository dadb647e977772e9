"""The whole loss of a mini-batch in float64: which advantages, which terms, with which signs, weights and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.cases.oracles import advantages, corrections, losses
from harness.cases.oracles.log_probs import kl

LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True, kw_only=True)
class MiniBatch:
    """What a mini-batch brings to its loss, all `(B, T)` but the scores, baselines and groups of its rows."""

    scores: np.ndarray
    baselines: np.ndarray
    groups: Sequence[int]
    mask: np.ndarray
    log_probs: np.ndarray
    entropies: np.ndarray
    old: np.ndarray
    reference: np.ndarray
    rollout: np.ndarray
    values: np.ndarray | None = None
    old_values: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class WholeLoss:
    """Gradients are by token, `(B, T)`; `undecided` marks tokens at a kink, where rounding chooses the branch."""

    loss: float
    terms: Mapping[str, float]
    gradients: Mapping[str, np.ndarray]
    undecided: Mapping[str, np.ndarray]
    advantages: np.ndarray


def whole_loss(batch: MiniBatch, algorithm: Mapping[str, Any], *, horizon: int | None, near: float) -> WholeLoss:
    """Loss, terms and token gradients under the settings of an algorithm.

    `near` says how far off a log-prob may be: a token that close to a kink is undecided.
    """
    mask = batch.mask > 0
    weights = losses.aggregation_weights(
        batch.mask, algorithm["aggregation"], empty_row=algorithm["empty_row"], horizon=horizon
    )
    cleaned = {
        name: np.where(mask, getattr(batch, name), 0.0)
        for name in ("log_probs", "entropies", "old", "reference", "rollout")
    }
    new, old, reference = cleaned["log_probs"], cleaned["old"], cleaned["reference"]
    advantage, returns = _advantages(batch, algorithm, kl_of=(old, reference))

    tokens = max(int(mask.sum()), 1)
    terms = {"entropy": float(np.where(mask, cleaned["entropies"], 0.0).sum() / tokens)}
    loss = -algorithm["entropy_coefficient"] * float((weights * cleaned["entropies"]).sum())
    gradients = {"log_probs": np.zeros_like(new), "entropies": -algorithm["entropy_coefficient"] * weights}
    undecided = {"log_probs": np.zeros(mask.shape, dtype=bool), "entropies": np.zeros(mask.shape, dtype=bool)}

    if algorithm["policy_loss"] != "none":
        correction = corrections.importance_weights(
            old,
            cleaned["rollout"],
            batch.mask,
            kind=algorithm["correction"],
            cap=algorithm["correction_cap"],
            floor=algorithm["correction_floor"],
            log_ratio_bound=LOG_RATIO_BOUND,
        )[0]
        value, slope, kinked = _surrogate(new, old, advantage, batch.mask, algorithm, near=near)
        terms["policy_loss"] = float((weights * correction * value).sum())
        loss += terms["policy_loss"]
        gradients["log_probs"] = gradients["log_probs"] + weights * correction * slope
        undecided["log_probs"] = undecided["log_probs"] | kinked
    if algorithm["kl"] != "none" and algorithm["kl_placement"] == "loss":
        value, slope = kl(algorithm["kl"], new, reference, log_ratio_bound=LOG_RATIO_BOUND)
        terms["kl_loss"] = float((weights * value).sum())
        loss += algorithm["kl_coefficient"] * terms["kl_loss"]
        gradients["log_probs"] = gradients["log_probs"] + algorithm["kl_coefficient"] * weights * slope
        if algorithm["kl"] == "abs":
            undecided["log_probs"] = undecided["log_probs"] | (np.abs(new - reference) <= near)
    if batch.values is not None and returns is not None:
        assert batch.old_values is not None
        values, before = np.where(mask, batch.values, 0.0), np.where(mask, batch.old_values, 0.0)
        clip = algorithm["value_clip"]
        value, slope, _ = losses.clipped_value_loss(values, before, returns, clip=clip)
        terms["value_loss"] = float((weights * value).sum())
        loss += algorithm["value_coefficient"] * terms["value_loss"]
        gradients["values"] = algorithm["value_coefficient"] * weights * slope
        undecided["values"] = _value_kinks(values, before, returns, clip=clip, near=near)
    return WholeLoss(loss=loss, terms=terms, gradients=gradients, undecided=undecided, advantages=advantage)


def _advantages(
    batch: MiniBatch, algorithm: Mapping[str, Any], *, kl_of: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Advantages `(B, T)`, and returns with a critic."""
    mask, kind = batch.mask > 0, algorithm["advantage"]
    returns = None
    if kind in ("gae", "reinforce_pp"):
        rewards = np.zeros(mask.shape)
        for row, score in enumerate(batch.scores):
            counted = np.flatnonzero(mask[row])
            if len(counted):
                rewards[row, counted[-1]] = score
        if algorithm["kl"] != "none" and algorithm["kl_placement"] == "reward":
            taken, _ = kl(algorithm["kl"], *kl_of, log_ratio_bound=LOG_RATIO_BOUND)
            rewards = np.where(mask, rewards - algorithm["kl_coefficient"] * taken, 0.0)
        if kind == "gae":
            assert batch.old_values is not None
            found, returns, _ = advantages.gae(
                rewards, batch.old_values, batch.mask, gamma=algorithm["gamma"], lam=algorithm["lam"]
            )
        else:
            found, _ = advantages.reinforce_pp(rewards, batch.mask, gamma=algorithm["gamma"])
    else:
        found = np.where(mask, _by_row(batch, algorithm)[:, None], 0.0)
    if kind in ("gae", "reinforce_pp", "reinforce_pp_baseline") and algorithm["whiten"]:
        whitened = np.zeros_like(found)
        whitened[mask] = advantages.standardise(
            found[mask], ddof=algorithm["std_ddof"], eps=algorithm["std_eps"], divide_by_std=True
        )
        found = whitened
    return found, returns


def _by_row(batch: MiniBatch, algorithm: Mapping[str, Any]) -> np.ndarray:
    match algorithm["advantage"]:
        case "grpo":
            return advantages.group_advantages(
                batch.scores,
                batch.groups,
                ddof=algorithm["std_ddof"],
                eps=algorithm["std_eps"],
                divide_by_std=algorithm["divide_by_std"],
                singleton=algorithm["singleton"],
            )
        case "rloo":
            return advantages.rloo(batch.scores, batch.groups, singleton=algorithm["singleton"])
        case "reinforce_pp_baseline":
            return advantages.group_advantages(
                batch.scores, batch.groups, ddof=0, eps=0.0, divide_by_std=False, singleton=algorithm["singleton"]
            )
        case "remax":
            return advantages.remax(batch.scores, batch.baselines)
        case "none":
            return np.zeros_like(batch.scores)
    raise ValueError(f"no oracle for the advantage {algorithm['advantage']!r}")


def _surrogate(
    new: np.ndarray,
    old: np.ndarray,
    advantage: np.ndarray,
    mask: np.ndarray,
    algorithm: Mapping[str, Any],
    *,
    near: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loss and slope by token, and where the clip is so near that rounding decides."""
    low, high = algorithm["clip_low"], algorithm["clip_high"]
    bounds = {"low": low, "high": high, "log_ratio_bound": LOG_RATIO_BOUND}
    log_ratio = new - old
    match algorithm["policy_loss"]:
        case "ppo_clip":
            if algorithm["dual_clip"] is None:
                value, slope, _ = losses.ppo_clip(new, old, advantage, **bounds)
            else:
                value, slope, _ = losses.dual_clip(new, old, advantage, **bounds, dual=algorithm["dual_clip"])
        case "gspo":
            value, slope, _ = losses.gspo(new, old, advantage, mask, **bounds)
            lengths = np.maximum(mask.sum(axis=1, keepdims=True), 1)
            log_ratio = np.broadcast_to((log_ratio * mask).sum(axis=1, keepdims=True) / lengths, new.shape)
        case "cispo":
            value, slope, _ = losses.cispo(new, old, advantage, **bounds)
        case other:
            raise ValueError(f"no oracle for the policy loss {other!r}")
    edges = [np.log1p(-low) if low < 1 else -np.inf, np.log1p(high), LOG_RATIO_BOUND, -LOG_RATIO_BOUND]
    if algorithm["dual_clip"] is not None:
        edges.append(np.log(algorithm["dual_clip"]))
    return value, slope, np.any([np.abs(log_ratio - edge) <= near for edge in edges], axis=0)


def _value_kinks(
    values: np.ndarray, before: np.ndarray, returns: np.ndarray, *, clip: float | None, near: float
) -> np.ndarray:
    if clip is None:
        return np.zeros(values.shape, dtype=bool)
    bounded = before + np.clip(values - before, -clip, clip)
    size = 1 + np.abs(values) + np.abs(before) + np.abs(returns)
    outside = np.abs(values - before) >= clip - near * size
    return outside & (np.abs(np.abs(values - returns) - np.abs(bounded - returns)) <= near * size)
