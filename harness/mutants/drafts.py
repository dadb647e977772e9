"""Defects that the case of harness/cases/drafts.py must catch."""

from __future__ import annotations

from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere, replace_method

_CASE = "rollout.drafts-are-lossless"


def _accepted_on_argmax(hit: Hit) -> None:
    from reference_trainer.rollout import speculative

    def defective(p: Any, q: Any, drafts: Any) -> Any:
        hit()
        return (p.argmax(-1) == drafts).to(p.dtype)

    replace_everywhere(speculative.acceptance, defective)


def _free_token_from_the_draft_before(hit: Hit) -> None:
    from reference_trainer.rollout import speculative

    sound = speculative.own_distributions

    def defective(p: Any, q: Any) -> Any:
        hit()
        own = sound(p, q)
        if q.shape[1]:
            own[:, -1] = p[:, -2]
        return own

    replace_everywhere(sound, defective)


def _replaced_from_the_target(hit: Hit) -> None:
    from reference_trainer.rollout import speculative

    def defective(p: Any, q: Any) -> Any:
        hit()
        return p

    replace_everywhere(speculative.residual, defective)


def _draft_distribution_before_the_filter(hit: Hit) -> None:
    import torch

    from reference_trainer.rollout import speculative

    sound = speculative.propose

    def defective(logits: Any, uniforms: Any, *, temperature: Any, **rest: Any) -> Any:
        hit()
        tokens, q = sound(logits, uniforms, temperature=temperature, **rest)
        whole = (logits.double() / temperature.clamp(min=1e-6)[:, None]).softmax(-1)
        return tokens, torch.where((temperature == 0)[:, None], q, whole)

    replace_everywhere(sound, defective)


def _rejected_drafts_stay_in_the_cache(hit: Hit) -> None:
    from reference_trainer.models import rewinding

    sound = rewinding.RewindableCache.keep

    def defective(self: Any, *, processed: int, kept: int) -> int:
        hit()
        length = self.length + kept
        sound(self, processed=processed, kept=processed)
        self.length = length
        return length

    replace_method(rewinding.RewindableCache, "keep", defective)


def _drafters_cache_not_rolled_back(hit: Hit) -> None:
    from reference_trainer.models import drafter

    def defective(cache: Any, drafts: int) -> None:
        hit()

    replace_everywhere(drafter.forget_drafts, defective)


def _accepted_by_a_batch_mate(hit: Hit) -> None:
    from reference_trainer.rollout import speculative

    sound = speculative.verify

    def defective(*args: Any, **rest: Any) -> Any:
        hit()
        verdict = sound(*args, **rest)
        return verdict._replace(accepted=verdict.accepted.max().expand_as(verdict.accepted))

    replace_everywhere(sound, defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_CASE}:accepted-on-argmax",
        case=_CASE,
        defect="a sampled draft is accepted when it is the target's likeliest token",
        install=_accepted_on_argmax,
    ),
    Mutant(
        name=f"{_CASE}:free-token-off-by-one",
        case=_CASE,
        defect="the token behind the last accepted draft is drawn from the distribution of that draft's place",
        install=_free_token_from_the_draft_before,
    ),
    Mutant(
        name=f"{_CASE}:replaced-from-the-target",
        case=_CASE,
        defect="a rejected draft is replaced from the target's distribution and not from what the drafter leaves of it",
        install=_replaced_from_the_target,
    ),
    Mutant(
        name=f"{_CASE}:draft-before-the-filter",
        case=_CASE,
        defect="the drafter's distribution is taken before top-k and top-p, its tokens after them",
        install=_draft_distribution_before_the_filter,
    ),
    Mutant(
        name=f"{_CASE}:accepted-by-a-batch-mate",
        case=_CASE,
        defect="all rows keep as many drafts as the row with the most",
        install=_accepted_by_a_batch_mate,
    ),
    Mutant(
        name=f"{_CASE}:rejected-drafts-stay-in-the-cache",
        case=_CASE,
        defect="keys and values of rejected drafts are not taken back",
        install=_rejected_drafts_stay_in_the_cache,
    ),
    Mutant(
        name=f"{_CASE}:drafters-cache-not-rolled-back",
        case=_CASE,
        defect="a drafter goes on with its own rejected drafts in its cache",
        install=_drafters_cache_not_rolled_back,
    ),
    Mutant(
        name=f"{_CASE}:rejected-drafts-stay-in-gemma4",
        case=_CASE,
        defect="keys and values of rejected drafts are not taken back, and only in cells of Gemma4",
        install=_rejected_drafts_stay_in_the_cache,
        only_model="gemma4-mtp",
    ),
)
