"""Choosing the next token: filtering and drawing as pure functions of logits and uniform numbers.

Order as in transformers and vLLM: temperature, then top-k, then top-p over what top-k left. Everything after the
logits is float64, so a draw is decided by the logits and the uniform number alone.
"""

from __future__ import annotations

import torch

from reference_trainer.algorithms.logprobs import at_least_float32


def choose_tokens(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    banned: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next token of each row and its log-prob, from logits `(B, V)`; everything else is `(B,)`.

    `temperature` 0 is greedy, `top_p` 1 and `top_k` 0 are off, `uniforms` lie in [0, 1). The log-prob is of the
    policy at `temperature` (at 1 for a greedy row), before top-p, top-k and the ban of the ids `banned` `(K,)`.
    """
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature).to(at_least_float32(logits).dtype)
    log_probs = torch.log_softmax(at_least_float32(logits) / divisor[:, None], dim=-1)  # (B, V)
    allowed = without(log_probs, banned)
    probabilities = filter_top_p(filter_top_k(allowed.double().exp(), top_k), top_p)
    tokens = torch.where(greedy, allowed.argmax(-1), draw(probabilities, uniforms))
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def sampled_distribution(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    banned: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs at `temperature` before the filters, and the distribution that `choose_tokens` draws from, float64.

    Logits and both results `(N, V)`, the rest `(N,)`, banned ids `(K,)`. A greedy row's distribution is all on its
    likeliest token.
    """
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature).to(at_least_float32(logits).dtype)
    log_probs = torch.log_softmax(at_least_float32(logits) / divisor[:, None], dim=-1)
    allowed = without(log_probs, banned)
    kept = filter_top_p(filter_top_k(allowed.double().exp(), top_k), top_p)
    likeliest = torch.zeros_like(kept).scatter_(-1, allowed.argmax(-1, keepdim=True), 1.0)
    return log_probs, torch.where(greedy[:, None], likeliest, kept / kept.sum(-1, keepdim=True))


def without(log_probs: torch.Tensor, banned: torch.Tensor | None) -> torch.Tensor:
    """Log-probs `(…, V)` with probability 0 for the ids `banned` `(K,)`; the others keep theirs.

    Placeholders of images are banned: nothing stands behind one that was sampled. A trainer knows of no ban, so the
    log-prob of a drawn token is taken before it, as before top-k and top-p, and agrees with the trainer's.
    """
    return log_probs if banned is None else log_probs.index_fill(-1, banned, -torch.inf)


def filter_top_k(probabilities: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep each row's `top_k` likeliest tokens, `(B, V)` with `(B,)`; ties go to the lower id. Sums stay below 1."""
    if not bool((top_k > 0).any()):
        return probabilities
    keep = torch.where(top_k > 0, top_k, probabilities.shape[-1])[:, None]  # (B, 1)
    order = probabilities.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )
    return probabilities.masked_fill(rank >= keep, 0.0)


def filter_top_p(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep each row's smallest set of likeliest tokens that holds `top_p` of its mass, `(B, V)` with `(B,)`.

    Holtzman et al., "The Curious Case of Neural Text Degeneration", arXiv:1904.09751. The likeliest token stays.
    """
    if not bool((top_p < 1).any()):
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # mass of the likelier tokens
    dropped = before >= top_p[:, None] * ordered.sum(-1, keepdim=True)
    dropped[:, 0] = False
    dropped &= (top_p < 1)[:, None]
    return probabilities.masked_fill(torch.zeros_like(dropped).scatter_(-1, order, dropped), 0.0)


def draw(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw by inversion: the first token whose cumulated mass exceeds uniform · total, `(B, V)` to `(B,)`."""
    cumulated = probabilities.cumsum(-1)
    target = uniforms[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, target, right=True).squeeze(-1).clamp(max=probabilities.shape[-1] - 1)
