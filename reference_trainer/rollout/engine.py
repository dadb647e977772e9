"""What a rollout engine is to the trainer: it samples, and it takes weights. Nothing else is asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch

from reference_trainer.data.images import Image


class FinishReason(StrEnum):
    STOP = "stop"  # the end token was sampled; it is the last token of the sample
    LENGTH = "length"  # the token budget was spent
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True)
class SamplingRequest:
    """One prompt to continue. `seed` alone decides the draw, whatever the batch mates, unless there are drafts."""

    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    images: tuple[Image, ...] = ()  # in the order of their placeholders in the prompt
    draft_tokens: int | None = None  # proposed at a time by the model's drafter; 0: none, None: as the engine is set


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What was sampled. `log_probs[t]` is of `tokens[t]` under the policy at `temperature`, before top-p and top-k."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: int
    drafted: tuple[int, ...] = ()
    """Drafts at each place behind the last token, over all rounds in which the row was alive; empty without drafter."""
    accepted: tuple[int, ...] = ()
    """Those of them that the target accepted, before a batch mate held the row up."""
    target_forwards: int = 0
    """Forward passes of the policy until this sample was done; as many as tokens without drafts."""


class RolloutEngine(Protocol):
    """Samples with the weights of `weight_version`."""

    weight_version: int

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        """One sample a request, in order."""
        ...

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        """Take every named tensor or none; return how many were applied. A name nobody applies is an error."""
        ...

    def close(self) -> None: ...
