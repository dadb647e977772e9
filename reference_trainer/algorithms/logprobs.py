"""Log-probabilities and entropy of a categorical policy, from logits, or from hidden states and the head's weight.

Half-precision logits are worked on in float32; float64 stays float64. docs/algorithms/log_probs.md says what each
variant costs.
"""

from __future__ import annotations

from typing import Literal, overload

import torch

from reference_trainer.algorithms.chunks import in_recomputed_chunks
from reference_trainer.algorithms.fused_logprobs import fused_log_probs
from reference_trainer.config import LogProbVariant


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """Widen half precision to float32, in which sums over a vocabulary keep their digits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def token_log_probs(logits: torch.Tensor, labels: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Log-prob of each label under softmax(logits / temperature).

    logits `(B, T, V)`, labels `(B, T)` int64, returns `(B, T)`. Raises ValueError when temperature is not positive.
    """
    _require_positive(temperature)
    log_probs = torch.log_softmax(at_least_float32(logits) / temperature, dim=-1)  # (B, T, V)
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def entropy(logits: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Entropy in nats of softmax(logits / temperature), `(B, T, V)` to `(B, T)`.

    A logit of -inf is an impossible token: it adds nothing, to value and gradient.
    """
    return _entropy_of(torch.log_softmax(at_least_float32(logits) / temperature, dim=-1))


def head_logits(hidden: torch.Tensor, weight: torch.Tensor, *, softcap: float | None) -> torch.Tensor:
    """cap · tanh(hidden weightᵀ / cap), `(N, H)` and `(V, H)` to `(N, V)` of float32 at least; no cap where null."""
    logits = at_least_float32(hidden @ weight.T)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


@overload
def log_probs_from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    variant: LogProbVariant = "dense",
    chunk: int = 512,
    with_entropy: Literal[True] = True,
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def log_probs_from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    variant: LogProbVariant = "dense",
    chunk: int = 512,
    with_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]: ...


def log_probs_from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    variant: LogProbVariant = "dense",
    chunk: int = 512,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-prob of each label and entropy at it, `(N,)` each, from hidden states `(N, H)` and the head's `(V, H)`.

    The variants differ in memory and time alone; `chunk` is in positions (chunked, fused). The soft cap works on logits
    in float32 at least. Where the entropy is not asked for it is None. Raises ValueError for a temperature that is not
    positive or a chunk below 1.
    """
    _require_positive(temperature)
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; a chunk has one position at least")

    def whole(hidden: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = head_logits(hidden, weight, softcap=softcap)
        scaled = logits / temperature if temperature != 1 else logits  # a copy of all logits is worth avoiding
        return _from_logits(scaled, labels, by_log_sum=variant != "dense", with_entropy=with_entropy)

    match variant:
        case "dense" | "logsumexp":
            found = whole(hidden, labels, weight)
        case "chunked":
            found = in_recomputed_chunks(whole, (hidden, labels), (weight,), chunk=chunk)
        case "fused":
            return fused_log_probs(
                hidden,
                weight,
                labels,
                temperature=temperature,
                softcap=softcap,
                chunk=chunk,
                with_entropy=with_entropy,
            )
    return found[0], found[1] if with_entropy else None


def _from_logits(
    scaled: torch.Tensor, labels: torch.Tensor, *, by_log_sum: bool, with_entropy: bool
) -> tuple[torch.Tensor, ...]:
    """Log-prob of each label and, where asked for, the entropy, `(N,)` each, from logits over temperature `(N, V)`.

    `by_log_sum`: one gathered logit less a log-sum-exp, and H = log Σ exp s - Σ p s; else by the whole log-softmax.
    """
    at = labels.unsqueeze(-1)
    if not by_log_sum:
        every = torch.log_softmax(scaled, dim=-1)
        return every.gather(-1, at).squeeze(-1), *((_entropy_of(every),) if with_entropy else ())
    log_sum = scaled.logsumexp(-1)
    log_probs = scaled.gather(-1, at).squeeze(-1) - log_sum
    if not with_entropy:
        return (log_probs,)
    return log_probs, log_sum - (torch.softmax(scaled, dim=-1) * scaled).sum(-1)


def _entropy_of(log_probs: torch.Tensor) -> torch.Tensor:
    possible = log_probs.masked_fill(log_probs == -torch.inf, 0.0)  # 0 · -inf would be NaN
    return -(log_probs.exp() * possible).sum(-1)


def _require_positive(temperature: float) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; log-probs are defined for a positive one")
