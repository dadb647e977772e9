"""Defects that the case of harness/cases/update.py must catch: sound functions, wired wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere, replace_method

_UPDATE = "loss.update-matches-oracle"


def _kl_of_the_reference(hit: Hit) -> None:
    from reference_trainer.algorithms import kl

    sound = kl.kl_estimate

    def defective(kind: Any, log_probs: Any, reference: Any) -> Any:
        hit()
        return sound(kind, reference, log_probs)

    replace_everywhere(sound, defective)


def _settings_of_the_objective(hit: Hit, change: Any) -> None:
    """Build the objective with other settings of the algorithm than those that were asked for."""
    from reference_trainer.trainers import objective

    sound = objective.Objective.__init__

    def defective(self: Any, *parts: Any, config: Any, **rest: Any) -> None:
        hit()
        changed = config.algorithm.model_copy(update=change(config.algorithm))
        sound(self, *parts, config=config.model_copy(update={"algorithm": changed}), **rest)

    replace_method(objective.Objective, "__init__", defective)


def _entropy_sign(hit: Hit) -> None:
    _settings_of_the_objective(hit, lambda algorithm: {"entropy_coefficient": -algorithm.entropy_coefficient})


def _clip_bounds_swapped(hit: Hit) -> None:
    _settings_of_the_objective(
        hit, lambda algorithm: {"clip_low": algorithm.clip_high, "clip_high": algorithm.clip_low}
    )


def _value_clip_dropped(hit: Hit) -> None:
    _settings_of_the_objective(hit, lambda algorithm: {"value_clip": None})


def _critic_is_not_trained(hit: Hit) -> None:
    _settings_of_the_objective(hit, lambda algorithm: {"value_coefficient": 0.0})


def _norm_by_the_longest_row(hit: Hit) -> None:
    from reference_trainer.algorithms import aggregation

    sound = aggregation.aggregate

    def defective(values: Any, mask: Any, mode: Any, *, horizon: Any = None, **rest: Any) -> Any:
        hit()
        return sound(values, mask, mode, horizon=None, **rest)

    replace_everywhere(sound, defective)


def _score_at_the_first_token(hit: Hit) -> None:
    from reference_trainer.trainers import experience

    def defective(scores: Any, mask: Any) -> Any:
        hit()
        first = mask & (mask.cumsum(-1) == 1)
        return scores[:, None] * first

    replace_everywhere(experience.score_at_last_token, defective)


def _gamma_and_lambda_swapped(hit: Hit) -> None:
    from reference_trainer.algorithms import advantages

    sound = advantages.gae

    def defective(*inputs: Any, gamma: float = 1.0, lam: float = 0.95) -> Any:
        hit()
        return sound(*inputs, gamma=lam, lam=gamma)

    replace_everywhere(sound, defective)


def _whitening_skipped(hit: Hit) -> None:
    from reference_trainer.algorithms import advantages

    def defective(values: Any, mask: Any, **settings: Any) -> Any:
        hit()
        return values

    replace_everywhere(advantages.whiten, defective)


def _end_token_untrained(hit: Hit) -> None:
    from reference_trainer.trainers import objective

    sound = objective.Objective.__call__

    def defective(self: Any, part: Any, *, whole: Any) -> Any:
        hit()
        mask = part.mask
        last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
        return sound(self, replace(part, mask=mask & ~last), whole=whole)

    replace_method(objective.Objective, "__call__", defective)


def _ratio_is_detached(hit: Hit) -> None:
    from reference_trainer.algorithms import losses

    sound = losses.policy_loss

    def defective(kind: Any, log_probs: Any, *inputs: Any, **settings: Any) -> Any:
        hit()
        answer = sound(kind, log_probs, *inputs, **settings)
        halved = (answer.loss + answer.loss.detach()) / 2
        return losses.TokenLoss(loss=halved, metrics=answer.metrics)

    replace_everywhere(sound, defective)


def _correction_upside_down(hit: Hit) -> None:
    from reference_trainer.algorithms import corrections

    sound = corrections.importance_weights

    def defective(old: Any, rollout: Any, mask: Any, **settings: Any) -> Any:
        hit()
        return sound(rollout, old, mask, **settings)

    replace_everywhere(sound, defective)


def _groups_merged(hit: Hit) -> None:
    from reference_trainer.algorithms import advantages

    sound = advantages.group_advantages

    def defective(scores: Any, groups: Any, **settings: Any) -> Any:
        hit()
        return sound(scores, [0] * len(groups), **settings)

    replace_everywhere(sound, defective)


def _mutant(slug: str, defect: str, install: Any, **where: Any) -> Mutant:
    return Mutant(name=f"{_UPDATE}:{slug}", case=_UPDATE, defect=defect, install=install, **where)


MUTANTS: tuple[Mutant, ...] = (
    _mutant("kl-of-the-reference", "the KL is taken from the reference to the policy", _kl_of_the_reference),
    _mutant("entropy-sign", "the entropy bonus is a malus", _entropy_sign),
    _mutant("clip-bounds-swapped", "the ratio's lower and upper clip have changed places", _clip_bounds_swapped),
    _mutant("value-clip-dropped", "the critic's clip is never passed on", _value_clip_dropped, only_algorithm="ppo"),
    _mutant("critic-is-not-trained", "the value loss has no weight", _critic_is_not_trained, only_algorithm="ppo"),
    _mutant("norm-by-the-longest-row", "the constant horizon is not passed on", _norm_by_the_longest_row),
    _mutant(
        "score-at-the-first-token",
        "the score stands at a response's start",
        _score_at_the_first_token,
        only_algorithm="ppo",
    ),
    _mutant(
        "gamma-and-lambda-swapped",
        "GAE discounts by λ and trusts by γ",
        _gamma_and_lambda_swapped,
        only_algorithm="ppo",
    ),
    _mutant("whitening-skipped", "advantages are left as they are", _whitening_skipped, only_algorithm="ppo"),
    _mutant("end-token-untrained", "the last token of each response is left out", _end_token_untrained),
    _mutant("ratio-half-detached", "the surrogate is right and its gradient half as large", _ratio_is_detached),
    _mutant(
        "correction-upside-down",
        "the off-policy weight is of the engine over the trainer",
        _correction_upside_down,
        only_algorithm="grpo-tis",
    ),
    _mutant(
        "kl-of-the-reference-in-gemma4",
        "the KL is taken from the reference to the policy, and only in cells of Gemma4",
        _kl_of_the_reference,
        only_model="gemma4",
    ),
    _mutant("groups-merged", "all prompts of a batch are one group", _groups_merged, only_algorithm="grpo"),
)
