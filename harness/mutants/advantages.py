"""Defects of advantages and rewards, which loss.matches-oracle must catch."""

from __future__ import annotations

from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere

_ORACLE = "loss.matches-oracle"


def _rloo_counts_itself(hit: Hit) -> None:
    from reference_trainer.algorithms import advantages

    def defective(scores: Any, groups: Any, *, singleton: Any = "zero") -> Any:
        hit()
        return advantages.group_advantages(scores, groups, divide_by_std=False, singleton=singleton)

    replace_everywhere(advantages.rloo, defective)


def _baseline_leaves_itself_out(hit: Hit) -> None:
    from reference_trainer.algorithms import advantages

    def defective(scores: Any, groups: Any, *, singleton: Any = "zero") -> Any:
        hit()
        return advantages.rloo(scores, groups, singleton=singleton)

    replace_everywhere(advantages.reinforce_pp_baseline, defective)


def _discount_counts_masked_tokens(hit: Hit) -> None:
    import torch

    from reference_trainer.algorithms import advantages

    sound = advantages.reinforce_pp

    def defective(rewards: Any, mask: Any, *, gamma: float = 1.0) -> Any:
        hit()
        counted = mask.bool()
        found = sound(torch.where(counted, rewards, 0.0), torch.ones_like(counted), gamma=gamma)
        return torch.where(counted, found, 0.0)

    replace_everywhere(sound, defective)


def _remax_in_half(hit: Hit) -> None:
    from reference_trainer.algorithms import advantages

    def defective(scores: Any, baselines: Any) -> Any:
        hit()
        return advantages.at_least_float32(scores - baselines)

    replace_everywhere(advantages.remax, defective)


def _informative_by_first_and_last(hit: Hit) -> None:
    from reference_trainer.algorithms import groups as by_group

    def defective(scores: Any, groups: Any) -> list[int]:
        hit()
        found = by_group.rows_by_group(scores, groups)
        return sorted(row for rows in found if scores[rows[0]] != scores[rows[-1]] for row in rows)

    replace_everywhere(by_group.keep_informative, defective)


def _overlong_off_by_one(hit: Hit) -> None:
    from reference_trainer.algorithms import shaping

    sound = shaping.overlong_penalty

    def defective(lengths: Any, **settings: Any) -> Any:
        hit()
        return sound(lengths - 1, **settings)

    replace_everywhere(sound, defective)


def _kl_rewarded(hit: Hit) -> None:
    from reference_trainer.algorithms import kl as kls

    sound = kls.kl_penalised_rewards

    def defective(rewards: Any, kl: Any, mask: Any, *, coefficient: float) -> Any:
        hit()
        return sound(rewards, kl, mask, coefficient=-coefficient)

    replace_everywhere(sound, defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_ORACLE}:rloo-counts-itself",
        case=_ORACLE,
        defect="RLOO's baseline is the mean of the whole group: it divides by n where n - 1 are meant",
        install=_rloo_counts_itself,
    ),
    Mutant(
        name=f"{_ORACLE}:reinforce-pp-baseline-leaves-itself-out",
        case=_ORACLE,
        defect="the baseline of REINFORCE++ is the mean of the others, which is RLOO's",
        install=_baseline_leaves_itself_out,
    ),
    Mutant(
        name=f"{_ORACLE}:discount-counts-masked-tokens",
        case=_ORACLE,
        defect="REINFORCE++ discounts once more for each masked token on the way",
        install=_discount_counts_masked_tokens,
    ),
    Mutant(
        name=f"{_ORACLE}:remax-in-half",
        case=_ORACLE,
        defect="ReMax takes its difference in the scores' half precision",
        install=_remax_in_half,
    ),
    Mutant(
        name=f"{_ORACLE}:informative-by-first-and-last",
        case=_ORACLE,
        defect="dynamic sampling keeps a group when its first and last scores differ",
        install=_informative_by_first_and_last,
    ),
    Mutant(
        name=f"{_ORACLE}:overlong-off-by-one",
        case=_ORACLE,
        defect="the overlong buffer begins a token late",
        install=_overlong_off_by_one,
    ),
    Mutant(
        name=f"{_ORACLE}:kl-rewarded",
        case=_ORACLE,
        defect="the KL in the reward has its sign turned",
        install=_kl_rewarded,
    ),
)
