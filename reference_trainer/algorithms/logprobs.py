"""Log-probabilities and entropy of a categorical policy, from logits.

Half-precision logits are worked on in float32; float64 stays float64.
"""

from __future__ import annotations

import torch

from reference_trainer.config import LogProbVariant


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """Widen half precision to float32, in which sums over a vocabulary keep their digits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def token_log_probs(logits: torch.Tensor, labels: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Log-prob of each label under softmax(logits / temperature).

    logits `(B, T, V)`, labels `(B, T)` int64, returns `(B, T)`. Raises ValueError when temperature is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; log-probs are defined for a positive one")
    log_probs = torch.log_softmax(at_least_float32(logits) / temperature, dim=-1)  # (B, T, V)
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def entropy(logits: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Entropy in nats of softmax(logits / temperature), `(B, T, V)` to `(B, T)`.

    A logit of -inf is an impossible token: it adds nothing, to value and gradient.
    """
    log_probs = torch.log_softmax(at_least_float32(logits) / temperature, dim=-1)
    possible = log_probs.masked_fill(log_probs == -torch.inf, 0.0)  # 0 · -inf would be NaN
    return -(log_probs.exp() * possible).sum(-1)


def log_probs_from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    variant: LogProbVariant = "dense",
    chunk: int = 512,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each label and entropy at it, `(N,)` each, from hidden states `(N, H)` and the head's `(V, H)`."""
    logits = hidden @ weight.T  # (N, V)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return token_log_probs(logits, labels, temperature=temperature), entropy(logits, temperature=temperature)
