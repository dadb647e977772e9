"""What is taken from a score for the form of a response, not for its answer."""

from __future__ import annotations

import torch


def overlong_penalty(
    lengths: torch.Tensor,
    *,
    max_length: int | None,
    buffer: int | None,
    factor: float = 1.0,
    enabled: bool = True,
) -> torch.Tensor:
    """min(0, -(L - (max_length - buffer)) / buffer · factor) for lengths L `(B,)`, float64 `(B,)`, never above 0.

    Soft overlong punishment: DAPO, arXiv:2503.14476, eq. 13. It is 0 up to the buffer and -factor at max_length.
    Convention: beyond max_length, where no response should be, it goes on falling (the paper stops at -1).
    `enabled=False`, or no buffer or no length at all, gives 0 whatever the rest is. Raises ValueError when it is
    enabled and not 0 < buffer <= max_length. Add it to scores of another type with `.to(scores.dtype)`.
    """
    if not enabled or buffer is None or max_length is None:
        return torch.zeros(lengths.shape, dtype=torch.float64, device=lengths.device)
    if not 0 < buffer <= max_length:
        raise ValueError(
            f"the overlong buffer is {buffer} tokens of at most {max_length}; it should be at least 1 and no more"
        )
    beyond = (lengths.double() - (max_length - buffer)).clamp(min=0.0)
    return 0.0 - beyond / buffer * factor
