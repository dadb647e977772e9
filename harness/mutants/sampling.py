"""Defects that the case of harness/cases/sampling.py must catch."""

from __future__ import annotations

from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere

_SET = "rollout.sampling-keeps-its-set"


def _one_token_too_many(hit: Hit) -> None:
    from reference_trainer.rollout import sampling

    sound = sampling.filter_top_k

    def defective(probabilities: Any, top_k: Any) -> Any:
        hit()
        return sound(probabilities, top_k + (top_k > 0).long())

    replace_everywhere(sound, defective)


def _crossing_token_left_out(hit: Hit) -> None:
    import torch

    from reference_trainer.rollout import sampling

    def defective(probabilities: Any, top_p: Any) -> Any:
        hit()
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        beyond = ordered.cumsum(-1) >= top_p[:, None] * ordered.sum(-1, keepdim=True)
        beyond[:, 0] = False
        beyond &= (top_p < 1)[:, None]
        return probabilities.masked_fill(torch.zeros_like(beyond).scatter_(-1, order, beyond), 0.0)

    replace_everywhere(sampling.filter_top_p, defective)


def _top_p_of_the_whole_mass(hit: Hit) -> None:
    import torch

    from reference_trainer.rollout import sampling

    sound = sampling.filter_top_p

    def defective(probabilities: Any, top_p: Any) -> Any:
        hit()
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p[:, None]
        beyond[:, 0] = False
        beyond &= (top_p < 1)[:, None]
        return probabilities.masked_fill(torch.zeros_like(beyond).scatter_(-1, order, beyond), 0.0)

    replace_everywhere(sound, defective)


def _half_the_uniforms(hit: Hit) -> None:
    from reference_trainer.rollout import sampling

    sound = sampling.draw

    def defective(probabilities: Any, uniforms: Any) -> Any:
        hit()
        return sound(probabilities, uniforms * 0.5)

    replace_everywhere(sound, defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_SET}:one-token-too-many",
        case=_SET,
        defect="top-k keeps k + 1 tokens",
        install=_one_token_too_many,
    ),
    Mutant(
        name=f"{_SET}:crossing-token-left-out",
        case=_SET,
        defect="top-p leaves out the token that brings the mass to p",
        install=_crossing_token_left_out,
    ),
    Mutant(
        name=f"{_SET}:top-p-of-the-whole-mass",
        case=_SET,
        defect="top-p counts against the mass of the whole vocabulary, not of what top-k left",
        install=_top_p_of_the_whole_mass,
    ),
    Mutant(
        name=f"{_SET}:half-the-uniforms",
        case=_SET,
        defect="draws reach only the likelier half of the mass",
        install=_half_the_uniforms,
    ),
)
