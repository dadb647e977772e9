"""Defects that the cases of harness/cases/loss.py must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.mutants.base import Mutant
from harness.mutants.patching import replace_everywhere

Hit = Callable[[], None]


def _std_over_n(hit: Hit) -> None:
    from reference_trainer.algorithms import advantages

    sound = advantages._standardised

    def defective(x: Any, *, std_ddof: int, **settings: Any) -> Any:
        hit()
        return sound(x, std_ddof=0, **settings)

    replace_everywhere(sound, defective)


def _clip_on_the_wrong_side(hit: Hit) -> None:
    import torch

    from reference_trainer.algorithms import losses

    def defective(
        log_probs: Any,
        old_log_probs: Any,
        advantages: Any,
        mask: Any,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        log_ratio_bound: float = losses.LOG_RATIO_BOUND,
    ) -> Any:
        hit()
        new, old, advantage = (losses.clean(x, mask) for x in (log_probs, old_log_probs, advantages))
        ratio = (new - old).clamp(-log_ratio_bound, log_ratio_bound).exp()
        unclipped = -ratio * advantage
        clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
        metrics = {
            "clip_fraction": losses.clean((clipped < unclipped).to(new.dtype), mask),
            "approx_kl": losses.clean(losses.kl_k3(old, new), mask).detach(),
        }
        return losses.TokenLoss(loss=torch.minimum(unclipped, clipped), metrics=metrics)

    replace_everywhere(losses.ppo_clip_loss, defective)


def _kl_sign(hit: Hit) -> None:
    from reference_trainer.algorithms import kl

    sound = kl.kl_k1

    def defective(log_probs: Any, reference: Any) -> Any:
        hit()
        return sound(reference, log_probs)

    replace_everywhere(sound, defective)


def _ratio_overflows(hit: Hit) -> None:
    from reference_trainer.algorithms import losses

    sound = losses.ppo_clip_loss

    def defective(*inputs: Any, log_ratio_bound: float = 0.0, **settings: Any) -> Any:
        hit()
        return sound(*inputs, log_ratio_bound=float("inf"), **settings)

    replace_everywhere(sound, defective)


def _gae_reads_masked_values(hit: Hit) -> None:
    import torch

    from reference_trainer.algorithms import advantages

    def defective(rewards: Any, values: Any, mask: Any, *, gamma: float = 1.0, lam: float = 0.95) -> Any:
        hit()
        reward, value = advantages.at_least_float32(rewards * mask), advantages.at_least_float32(values)
        found = torch.zeros_like(value)
        next_value, next_advantage = (
            torch.zeros(len(value), dtype=value.dtype),
            torch.zeros(len(value), dtype=value.dtype),
        )
        for t in reversed(range(value.shape[1])):
            delta = reward[:, t] + gamma * next_value - value[:, t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = value[:, t]
            found[:, t] = next_advantage
        return found * mask, (found + value) * mask

    replace_everywhere(advantages.gae, defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="loss.matches-oracle:std-over-n",
        case="loss.matches-oracle",
        defect="the deviation of a group divides by n where n - 1 was asked for",
        install=_std_over_n,
    ),
    Mutant(
        name="loss.matches-oracle:clip-on-the-wrong-side",
        case="loss.matches-oracle",
        defect="PPO takes the better of the clipped and the unclipped surrogate, not the worse",
        install=_clip_on_the_wrong_side,
    ),
    Mutant(
        name="loss.matches-oracle:kl-sign",
        case="loss.matches-oracle",
        defect="the log-ratio of policy and reference has its sign turned",
        install=_kl_sign,
    ),
    Mutant(
        name="loss.matches-oracle:ratio-overflows",
        case="loss.matches-oracle",
        defect="the log-ratio is not bounded, so that a far-off token makes the loss infinite",
        install=_ratio_overflows,
    ),
    Mutant(
        name="loss.matches-oracle:gae-reads-masked-values",
        case="loss.matches-oracle",
        defect="GAE multiplies by the mask at the end: values on masked cells have leaked by then",
        install=_gae_reads_masked_values,
    ),
)
