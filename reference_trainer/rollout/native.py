"""The native engine: samples from a transformers model with its KV cache, and takes new weights.

Prompts of one length are decoded together, so no row is ever padded. That is exact for every architecture: position
ids count tokens, windows and convolutions hold tokens only, and a linear-attention state is computed over the chunks
that the row would have alone. Left padding needs care in each of these places, and moves the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers import PreTrainedModel

from reference_trainer.rollout.engine import FinishReason, Sample, SamplingRequest
from reference_trainer.rollout.sampling import choose_tokens
from reference_trainer.weights.apply import apply_tensors


class NativeEngine:
    """A `RolloutEngine` in this process. It owns `model`: weights change only through `update_weights`."""

    def __init__(self, model: PreTrainedModel, *, eos_id: int | None, pad_id: int | None, max_rows: int = 256) -> None:
        """`eos_id` None never stops early; `max_rows` bounds the rows decoded at once, and so the cache."""
        self.model = model.eval()
        self.weight_version = 0
        self._eos_id = eos_id
        self._filler = pad_id if pad_id is not None else 0  # what a finished row goes on with, unread
        self._max_rows = max_rows

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        """One sample a request, in order. Raises ValueError for a request that can't be decoded."""
        for index, request in enumerate(requests):
            self._refuse_impossible(request, index)
        by_length: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            by_length.setdefault(len(request.prompt), []).append(index)
        samples: dict[int, Sample] = {}
        for indices in by_length.values():
            for start in range(0, len(indices), self._max_rows):
                chunk = indices[start : start + self._max_rows]
                samples |= zip(chunk, self._decode([requests[index] for index in chunk]), strict=True)
        return [samples[index] for index in range(len(requests))]

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        """Take every parameter and persistent buffer, or none of them; return how many were applied.

        Raises WeightMismatch when names or shapes are not the model's; weights and version are then as before.
        """
        applied = apply_tensors(self.model, tensors)
        self.weight_version = version
        return applied

    def close(self) -> None:
        """Nothing outlives the engine."""

    def _refuse_impossible(self, request: SamplingRequest, index: int) -> None:
        limit = self.model.config.max_position_embeddings
        if not request.prompt:
            raise ValueError(
                f"request {index} has an empty prompt; give it at least one token, such as the begin token"
            )
        if request.max_tokens < 1:
            raise ValueError(f"request {index} has max_tokens {request.max_tokens}; ask for at least 1")
        if len(request.prompt) + request.max_tokens > limit:
            raise ValueError(
                f"request {index} needs {len(request.prompt)} + {request.max_tokens} positions but the model has "
                f"{limit}; shorten the prompt or lower max_tokens"
            )
        if request.temperature < 0 or not 0 < request.top_p <= 1 or request.top_k < 0:
            raise ValueError(
                f"request {index} has temperature {request.temperature}, top_p {request.top_p}, top_k {request.top_k}; "
                "they should be at least 0, in (0, 1], and at least 0"
            )

    @torch.no_grad()
    def _decode(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        """Decode prompts of one length to their end, one forward pass a token for all rows."""
        device = self.model.device
        temperature = torch.tensor([request.temperature for request in requests], dtype=torch.float64, device=device)
        top_p = torch.tensor([request.top_p for request in requests], dtype=torch.float64, device=device)
        top_k = torch.tensor([request.top_k for request in requests], device=device)
        # One generator a request: its draws depend neither on its batch mates nor on when they finish.
        generators = [torch.Generator().manual_seed(request.seed) for request in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        reasons: list[FinishReason | None] = [None] * len(requests)
        ids = torch.tensor([request.prompt for request in requests], device=device)  # (B, P), then (B, 1)
        cache = None
        while None in reasons:
            output = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            chosen, chosen_log_probs = choose_tokens(
                output.logits[:, -1],
                _next_uniforms(generators, wanted=[reason is None for reason in reasons]).to(device),
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
            )
            for row, (token, log_prob) in enumerate(zip(chosen.tolist(), chosen_log_probs.tolist(), strict=True)):
                if reasons[row] is not None:
                    continue
                tokens[row].append(token)
                log_probs[row].append(log_prob)
                if token == self._eos_id:
                    reasons[row] = FinishReason.STOP
                elif len(tokens[row]) == requests[row].max_tokens:
                    reasons[row] = FinishReason.LENGTH
            # Finished rows stay in the batch: a shrinking one would move the others' logits by rounding.
            following = [
                row[-1] if reason is None else self._filler for row, reason in zip(tokens, reasons, strict=True)
            ]
            ids = torch.tensor(following, device=device).view(-1, 1)
        return [
            Sample(
                tokens=tuple(tokens[row]),
                log_probs=tuple(log_probs[row]),
                finish_reason=reason,
                weight_version=self.weight_version,
            )
            for row, reason in enumerate(reasons)
            if reason is not None
        ]


def _next_uniforms(generators: Sequence[torch.Generator], *, wanted: Sequence[bool]) -> torch.Tensor:
    """One number in [0, 1) for each wanted row, 0 for the others, `(B,)` float64."""
    return torch.tensor(
        [
            torch.rand((), generator=generator, dtype=torch.float64).item() if wants else 0.0
            for generator, wants in zip(generators, wanted, strict=True)
        ],
        dtype=torch.float64,
    )
