"""How many bytes the reference's way from hidden states to log-probs holds, storage by storage."""

from __future__ import annotations

from typing import Any

import torch

from harness.subjects.protocol import HeadSize
from reference_trainer.algorithms import logprobs
from reference_trainer.live_bytes import peak_bytes


def peak(variant: Any, size: HeadSize, *, dtype: str, training: bool) -> int:
    """Peak above the inputs of one forward pass, in training of its backward pass too; both outputs have a gradient."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        drawn = torch.randn(*shape, generator=generator).to(getattr(torch, dtype))
        return drawn.requires_grad_(training)

    hidden, weight = normal(size.positions, size.hidden), normal(size.vocabulary, size.hidden)
    labels = torch.randint(size.vocabulary, (size.positions,), generator=generator)

    def run() -> None:
        with torch.set_grad_enabled(training):
            found = logprobs.log_probs_from_hidden(hidden, weight, labels, variant=variant, chunk=size.chunk)
            if training:
                sum(x.sum() for x in found).backward()  # type: ignore[union-attr]

    return peak_bytes(run)
