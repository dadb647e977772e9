"""Exact speculative sampling as pure functions: what is emitted has the target's distribution, whatever was proposed.

Leviathan, Kalman and Matias, arXiv:2211.17192; Chen et al., arXiv:2302.01318. Target p and draft q are the
distributions really sampled from: after temperature, top-k and top-p (`sampling.sampled_distribution`), and for a
greedy row one token alone. Everything after the logits is float64.

B rows, k drafts each, V tokens. Uniform numbers lie in [0, 1).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from reference_trainer.rollout.sampling import draw, sampled_distribution


class Verdict(NamedTuple):
    """What the target makes of the drafts of each row."""

    accepted: torch.Tensor
    """`(B,)`: drafts before the first that was rejected."""
    tokens: torch.Tensor
    """`(B, k + 1)`: the accepted drafts and one token of the target's own; what stands behind is unread."""
    log_probs: torch.Tensor
    """`(B, k + 1)` of `tokens` under the target at its temperature, before top-p and top-k."""


def propose(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    banned: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A draft of each row `(B,)` and the distribution q `(B, V)` that it was drawn from; logits `(B, V)`."""
    _, q = sampled_distribution(logits, temperature=temperature, top_p=top_p, top_k=top_k, banned=banned)
    return draw(q, uniforms), q


def acceptance(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """Probability min(1, p / q) that a draft is accepted; p and q `(…, V)`, drafts `(…)`."""
    target, draft = (one.gather(-1, drafts[..., None]).squeeze(-1) for one in (p, q))
    return (target / draft.clamp(min=torch.finfo(draft.dtype).tiny)).clamp(max=1.0)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Distribution of the token in a rejected draft's place: (p - q)+ brought to sum 1, `(…, V)`.

    Where p and q are equal nothing is rejected; it is p then, should rounding say otherwise.
    """
    excess = (p - q).clamp(min=0.0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > 0, excess / torch.where(mass > 0, mass, 1.0), p)


def verify(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    q: torch.Tensor,
    accept_uniforms: torch.Tensor,
    choice_uniforms: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    banned: torch.Tensor | None = None,
) -> Verdict:
    """Judge drafts `(B, k)` drawn from q `(B, k, V)` by the target's logits `(B, k + 1, V)`.

    The logits at j are those of the token that draft j stands for; the last ones, behind all drafts, are of the token
    that comes free when all are accepted. accept_uniforms `(B, k)`, choice_uniforms `(B, k + 1)`, settings `(B,)`,
    banned ids `(K,)`.
    """
    rows, places, vocabulary = logits.shape
    log_probs, p = (
        one.view(rows, places, vocabulary)
        for one in sampled_distribution(
            logits.reshape(-1, vocabulary),
            temperature=temperature.repeat_interleave(places),
            top_p=top_p.repeat_interleave(places),
            top_k=top_k.repeat_interleave(places),
            banned=banned,
        )
    )
    agreed = accept_uniforms < acceptance(p[:, :-1], q, drafts)  # (B, k)
    accepted = agreed.long().cumprod(-1).sum(-1)
    own = own_distributions(p, q)
    choices = draw(own.view(-1, vocabulary), choice_uniforms.reshape(-1)).view(rows, places)
    kept = torch.arange(places, device=logits.device) < accepted[:, None]
    tokens = torch.where(kept, torch.cat([drafts, choices[:, -1:]], dim=-1), choices)
    return Verdict(accepted, tokens, log_probs.gather(-1, tokens[..., None]).squeeze(-1))


def own_distributions(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """What the target draws itself at each place, `(B, k + 1, V)`: the residual for a draft, p behind the last."""
    return torch.cat([residual(p[:, :-1], q), p[:, -1:]], dim=1)
