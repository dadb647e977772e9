"""The loss of a drafter (multi-token prediction), DeepSeek-V3, arXiv:2412.19437, equation 24."""

from __future__ import annotations

import torch


def mtp_loss(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """-log q of each token, `(B, T)`, to be aggregated like the other token losses.

    log_probs `(B, T)` are the drafter's; mask `(B, T)` counts the tokens that it can predict. What is not counted,
    NaN and inf too, is 0 in value and gradient.
    """
    return -torch.where(mask.bool(), log_probs, 0.0)
