"""Defects that the cases of harness/cases/loss.py must catch."""

from __future__ import annotations

from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere, replace_method

_ORACLE = "loss.matches-oracle"
_SPLIT = "loss.split-invariant"


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

    def defective(ratio: Any, advantage: Any, *, clip_low: float, clip_high: float) -> Any:
        hit()
        unclipped = -ratio * advantage
        clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
        return torch.minimum(unclipped, clipped), clipped < unclipped

    replace_everywhere(losses._clipped_surrogate, defective)


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


def _normalise_per_micro_batch(hit: Hit) -> None:
    from reference_trainer.algorithms.aggregation import denominators
    from reference_trainer.trainers import update

    sound = update.Updater.loss

    def defective(self: Any, part: Any, *, whole: Any) -> Any:
        hit()
        return sound(self, part, whole=denominators(part.mask, empty_row=self._config.algorithm.empty_row))

    replace_method(update.Updater, "loss", defective)


def _mean_of_means(hit: Hit) -> None:
    from reference_trainer.algorithms.aggregation import denominators
    from reference_trainer.trainers import update

    sound = update.Updater.loss

    def defective(self: Any, part: Any, *, whole: Any) -> Any:
        hit()
        own = denominators(part.mask, empty_row=self._config.algorithm.empty_row)
        value, terms = sound(self, part, whole=own)
        return value / self.parts, {name: term / self.parts for name, term in terms.items()}

    _count_micro_batches()
    replace_method(update.Updater, "loss", defective)


def _count_micro_batches() -> None:
    """Leave in `updater.parts` how many micro-batches with a counted token the mini-batch has."""
    from reference_trainer.trainers import update

    sound = update.Updater.run

    def counting(self: Any, experience: Any, *, splits: Any, apply: bool = True) -> Any:
        self.parts = sum(1 for split in splits if experience.select(split).mask.any())
        return sound(self, experience, splits=splits, apply=apply)

    replace_method(update.Updater, "run", counting)


def row_mean_unguarded(hit: Hit) -> None:
    """Also a mutant of `rollout.empty-sequence`."""
    from reference_trainer.algorithms import aggregation

    sound = aggregation.aggregate

    def defective(values: Any, mask: Any, mode: Any, *, whole: Any = None, **rest: Any) -> Any:
        hit()
        if mode != "seq_mean_token_mean" or whole is None:
            return sound(values, mask, mode, whole=whole, **rest)
        counted = mask.bool()
        per_row = values.masked_fill(~counted, 0.0).sum(-1) / counted.sum(-1)
        return per_row.sum() / whole.rows

    replace_everywhere(sound, defective)


def _metrics_averaged_over_micro_batches(hit: Hit) -> None:
    from reference_trainer.algorithms.aggregation import denominators
    from reference_trainer.trainers import update

    sound = update.Updater.loss

    def defective(self: Any, part: Any, *, whole: Any) -> Any:
        hit()
        value, _ = sound(self, part, whole=whole)
        own = denominators(part.mask, empty_row=self._config.algorithm.empty_row)
        _, terms = sound(self, part, whole=own)
        return value, {name: term / self.parts for name, term in terms.items()}

    _count_micro_batches()
    replace_method(update.Updater, "loss", defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_ORACLE}:std-over-n",
        case=_ORACLE,
        defect="the deviation of a group divides by n where n - 1 was asked for",
        install=_std_over_n,
    ),
    Mutant(
        name=f"{_ORACLE}:clip-on-the-wrong-side",
        case=_ORACLE,
        defect="PPO takes the better of the clipped and the unclipped surrogate, not the worse",
        install=_clip_on_the_wrong_side,
    ),
    Mutant(
        name=f"{_ORACLE}:kl-sign",
        case=_ORACLE,
        defect="the log-ratio of policy and reference has its sign turned",
        install=_kl_sign,
    ),
    Mutant(
        name=f"{_ORACLE}:ratio-overflows",
        case=_ORACLE,
        defect="the log-ratio is not bounded, so that a far-off token makes the loss infinite",
        install=_ratio_overflows,
    ),
    Mutant(
        name=f"{_ORACLE}:gae-reads-masked-values",
        case=_ORACLE,
        defect="GAE multiplies by the mask at the end: values on masked cells have leaked by then",
        install=_gae_reads_masked_values,
    ),
    Mutant(
        name=f"{_SPLIT}:normalise-per-micro-batch",
        case=_SPLIT,
        defect="each micro-batch divides by its own count, and the parts are added",
        install=_normalise_per_micro_batch,
    ),
    Mutant(
        name=f"{_SPLIT}:mean-of-means",
        case=_SPLIT,
        defect="the loss is the mean of the micro-batches' means, whatever their sizes",
        install=_mean_of_means,
    ),
    Mutant(
        name=f"{_SPLIT}:unguarded-denominator",
        case=_SPLIT,
        defect="a row's mean divides by its length, also when that is 0",
        install=row_mean_unguarded,
    ),
    Mutant(
        name=f"{_SPLIT}:metrics-averaged-over-micro-batches",
        case=_SPLIT,
        defect="loss and gradients are right; metrics are means over micro-batches of unequal size",
        install=_metrics_averaged_over_micro_batches,
    ),
    Mutant(
        name=f"{_SPLIT}:mean-of-means-in-gemma4",
        case=_SPLIT,
        defect="the mean of means, and only in cells of Gemma4",
        install=_mean_of_means,
        only_model="gemma4",
    ),
)
