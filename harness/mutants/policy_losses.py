"""Defects of the policy losses and of their correction weights, which loss.matches-oracle must catch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere

_ORACLE = "loss.matches-oracle"


def _dual_clip_on_good_tokens(hit: Hit) -> None:
    import torch

    from reference_trainer.algorithms import losses

    sound = losses.ppo_clip_loss

    def defective(*inputs: Any, dual_clip: float | None = None, weights: Any = None, **settings: Any) -> Any:
        if dual_clip is None:
            return sound(*inputs, weights=weights, **settings)
        hit()
        once = sound(*inputs, **settings)
        advantage = losses.clean(inputs[2], inputs[3])
        most = dual_clip * advantage
        cut = (advantage > 0) & (once.loss.abs() > most)
        loss = torch.where(cut, -most, once.loss)
        metrics = {**once.metrics, "dual_clip_fraction": cut.to(loss.dtype)}
        return losses.TokenLoss(loss=losses._weighted(loss, weights, inputs[3]), metrics=metrics)

    replace_everywhere(sound, defective)


def _gspo(hit: Hit, *, log_ratio: Callable[[Any, Any], Any]) -> None:
    """GSPO with another log-ratio, made of the tokens' `(B, T)` and the mask."""
    from reference_trainer.algorithms import losses

    def defective(
        log_probs: Any,
        old_log_probs: Any,
        advantages: Any,
        mask: Any,
        *,
        clip_low: float = 3e-4,
        clip_high: float = 4e-4,
        weights: Any = None,
        log_ratio_bound: float = losses.LOG_RATIO_BOUND,
    ) -> Any:
        hit()
        new, old, advantage = (losses.clean(x, mask) for x in (log_probs, old_log_probs, advantages))
        ratio = log_ratio(new - old, mask.bool()).clamp(-log_ratio_bound, log_ratio_bound).exp()
        loss, clipped = losses._clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high)
        metrics = {
            "clip_fraction": losses._fraction(clipped, mask, loss.dtype),
            "approx_kl": losses._approx_kl(new, old, mask),
        }
        return losses.TokenLoss(loss=losses._weighted(loss, weights, mask), metrics=metrics)

    replace_everywhere(losses.gspo_loss, defective)


def _sum_over_tokens(apart: Any, counted: Any) -> Any:
    return apart.sum(-1, keepdim=True).detach() + (apart - apart.detach())


def _mean_over_the_width(apart: Any, counted: Any) -> Any:
    return apart.mean(-1, keepdim=True).detach() + (apart - apart.detach())


def _differentiated_mean(apart: Any, counted: Any) -> Any:
    return (apart.sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)).expand_as(apart)


def _cispo(hit: Hit, *, gradient: Callable[[Any, Any], Any]) -> None:
    """CISPO whose weight carries a graph, or whose clipped tokens do not: `gradient(ratio, clipped ratio)`."""
    from reference_trainer.algorithms import losses

    sound = losses.cispo_loss

    def defective(
        log_probs: Any,
        old_log_probs: Any,
        advantages: Any,
        mask: Any,
        *,
        clip_low: float = 1.0,
        clip_high: float = 0.2,
        weights: Any = None,
        log_ratio_bound: float = losses.LOG_RATIO_BOUND,
    ) -> Any:
        hit()
        new, old, advantage = (losses.clean(x, mask) for x in (log_probs, old_log_probs, advantages))
        ratio = (new - old).clamp(-log_ratio_bound, log_ratio_bound).exp()
        factor, policy = gradient(ratio, new)(1 - clip_low, 1 + clip_high)
        metrics = sound(
            log_probs,
            old_log_probs,
            advantages,
            mask,
            clip_low=clip_low,
            clip_high=clip_high,
            log_ratio_bound=log_ratio_bound,
        ).metrics
        return losses.TokenLoss(loss=losses._weighted(-factor * advantage * policy, weights, mask), metrics=metrics)

    replace_everywhere(sound, defective)


def _through_the_clip(ratio: Any, policy: Any) -> Callable[[float, float], Any]:
    return lambda low, high: (ratio.clamp(low, high), policy)


def _clipped_tokens_dropped(ratio: Any, policy: Any) -> Callable[[float, float], Any]:
    def parts(low: float, high: float) -> Any:
        inside = (ratio >= low) & (ratio <= high)
        return ratio.detach().clamp(low, high), policy.detach() + (policy - policy.detach()) * inside

    return parts


def _weights_leak(hit: Hit) -> None:
    from reference_trainer.algorithms import losses

    sound = losses._weighted

    def defective(loss: Any, weights: Any, mask: Any) -> Any:
        hit()
        return sound(loss, weights, mask) if weights is None else loss * weights.detach()

    replace_everywhere(sound, defective)


def _importance_weights(hit: Hit, *, kinds: tuple[str, ...], change: Callable[..., Any]) -> None:
    """Weights of these kinds are `change(ratio, mask, cap, floor, sound weights)`; metrics stay as they were."""
    from reference_trainer.algorithms import corrections

    sound = corrections.importance_weights

    def defective(
        old: Any, rollout: Any, mask: Any, *, kind: Any, cap: float = 2.0, floor: float = 0.0, **rest: Any
    ) -> Any:
        found = sound(old, rollout, mask, kind=kind, cap=cap, floor=floor, **rest)
        if kind not in kinds:
            return found
        hit()
        apart = (old.to(found.weights.dtype) - rollout.to(found.weights.dtype)).masked_fill(~mask.bool(), 0.0)
        weights = change(apart, mask.bool(), cap=cap, floor=floor, sound=found.weights).masked_fill(~mask.bool(), 0.0)
        metrics = {**found.metrics, "correction_weight": weights}
        return corrections.Weights(weights=weights, metrics=metrics)

    replace_everywhere(sound, defective)


def _floored(apart: Any, counted: Any, *, cap: float, floor: float, sound: Any) -> Any:
    return apart.clamp(-20, 20).exp().clamp(min=cap)


def _capped(apart: Any, counted: Any, *, cap: float, floor: float, sound: Any) -> Any:
    return apart.clamp(-20, 20).exp().clamp(max=cap)


def _without_a_floor(apart: Any, counted: Any, *, cap: float, floor: float, sound: Any) -> Any:
    ratio = apart.clamp(-20, 20).exp()
    return ratio * (ratio <= cap)


def _averaged_over_the_row(apart: Any, counted: Any, *, cap: float, floor: float, sound: Any) -> Any:
    mean = apart.sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
    return mean.clamp(-20, 20).exp().clamp(max=cap).expand_as(apart)


def _renormalised(apart: Any, counted: Any, *, cap: float, floor: float, sound: Any) -> Any:
    return sound * counted.sum() / (sound != 0).sum().clamp(min=1)


def _mutant(slug: str, defect: str, install: Callable[[Hit], Any]) -> Mutant:
    return Mutant(name=f"{_ORACLE}:{slug}", case=_ORACLE, defect=defect, install=install)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "dual-clip-on-good-tokens",
        "the second clip bounds the tokens of positive advantage, where the first one does",
        _dual_clip_on_good_tokens,
    ),
    _mutant(
        "gspo-sums-log-ratios",
        "GSPO's ratio is of the whole sequence, not its geometric mean",
        partial(_gspo, log_ratio=_sum_over_tokens),
    ),
    _mutant(
        "gspo-divides-by-the-width",
        "GSPO's mean over a row divides by the padded length",
        partial(_gspo, log_ratio=_mean_over_the_width),
    ),
    _mutant(
        "gspo-differentiates-the-mean",
        "GSPO's token form has the right value, and the sequence's gradient on every token",
        partial(_gspo, log_ratio=_differentiated_mean),
    ),
    _mutant(
        "cispo-gradient-through-the-clip",
        "CISPO differentiates its weight where it is not clipped",
        partial(_cispo, gradient=_through_the_clip),
    ),
    _mutant(
        "cispo-drops-clipped-tokens",
        "CISPO has no gradient where the ratio is clipped, as PPO has",
        partial(_cispo, gradient=_clipped_tokens_dropped),
    ),
    _mutant(
        "correction-weights-leak",
        "a token's loss is multiplied by its weight also where the mask is 0",
        _weights_leak,
    ),
    _mutant(
        "truncated-weights-floored",
        "truncated importance sampling takes the cap as a floor",
        partial(_importance_weights, kinds=("token_truncate",), change=_floored),
    ),
    _mutant(
        "masked-weights-capped",
        "masked importance sampling keeps what is beyond the cap, at the cap",
        partial(_importance_weights, kinds=("token_mask",), change=_capped),
    ),
    _mutant(
        "masked-weights-without-a-floor",
        "masked importance sampling forgets its lower bound",
        partial(_importance_weights, kinds=("token_mask",), change=_without_a_floor),
    ),
    _mutant(
        "sequence-weights-averaged",
        "a sequence's importance ratio is the geometric mean of its tokens', not their product",
        partial(_importance_weights, kinds=("sequence_truncate",), change=_averaged_over_the_row),
    ),
    _mutant(
        "masked-weights-renormalised",
        "the weights that are left are scaled up for those that were masked",
        partial(_importance_weights, kinds=("token_mask", "sequence_mask"), change=_renormalised),
    ),
)
