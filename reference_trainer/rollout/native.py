"""The native engine: samples from a transformers model with its KV cache, and takes new weights.

Prompts of one length are decoded together, so no row is ever padded. That is exact for every architecture: position
ids count tokens, or are told row by row where images bend them; windows and convolutions hold tokens only, and a
linear-attention state is computed over the chunks that the row would have alone. Left padding needs care in each of
these places, and moves the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from reference_trainer.models.drafter import Drafter, drafter_of
from reference_trainer.models.inputs import Positions, check_images
from reference_trainer.models.media import placeholder_ids
from reference_trainer.rollout.drafted import DraftedDecoding
from reference_trainer.rollout.engine import FinishReason, Sample, SamplingRequest
from reference_trainer.rollout.kv_cache import roomy_cache
from reference_trainer.rollout.prefill import prefill
from reference_trainer.rollout.sampling import choose_tokens
from reference_trainer.weights.apply import apply_tensors


class NativeEngine:
    """A `RolloutEngine` in this process. It owns `model`: weights change only through `update_weights`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_id: int | None,
        pad_id: int | None,
        max_rows: int = 256,
        draft_tokens: int = 0,
        draft_rows: int = 16,
        drafter: Drafter | None = None,
    ) -> None:
        """`eos_id` None never stops early; `max_rows` bounds the rows decoded at once, and so the cache.

        `draft_tokens` are proposed at a time, to at most `draft_rows` rows together, by `drafter`; None for the
        model's own. Raises ValueError when there is none.
        """
        self.model = model.eval()
        self.weight_version = 0
        self.target_forwards = 0  # passes of the model over its cache, since the start
        self._drafter = drafter if drafter is not None else drafter_of(model)
        self._draft_tokens, self._draft_rows = draft_tokens, draft_rows
        if draft_tokens and self._drafter is None:
            raise ValueError(f"draft_tokens is {draft_tokens} but the model has no drafter; set model.drafter, or 0")
        self._eos_id = eos_id
        self._filler = pad_id if pad_id is not None else 0  # what a finished row goes on with, unread
        self._max_rows = max_rows
        self._placeholders = placeholder_ids(model.config)  # never drawn

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        """One sample a request, in order. Raises ValueError for a request that can't be decoded."""
        for index, request in enumerate(requests):
            self._refuse_impossible(request, index)
        alike: dict[tuple[int, int], list[int]] = {}
        for index, request in enumerate(requests):
            alike.setdefault((len(request.prompt), self._drafts(request)), []).append(index)
        samples: dict[int, Sample] = {}
        for (_, drafts), indices in alike.items():
            rows = min(self._max_rows, self._draft_rows) if drafts else self._max_rows
            for start in range(0, len(indices), rows):
                chunk = indices[start : start + rows]
                asked = [requests[index] for index in chunk]
                decoded = self._decode_drafted(asked, drafts=drafts) if drafts else self._decode(asked)
                self.target_forwards += max(sample.target_forwards for sample in decoded)
                samples |= zip(chunk, decoded, strict=True)
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

    def _drafts(self, request: SamplingRequest) -> int:
        return self._draft_tokens if request.draft_tokens is None else request.draft_tokens

    def _decode_drafted(self, requests: Sequence[SamplingRequest], *, drafts: int) -> list[Sample]:
        assert self._drafter is not None
        decoding = DraftedDecoding(
            self.model,
            self._drafter,
            requests,
            draft_tokens=drafts,
            eos_id=self._eos_id,
            filler=self._filler,
            banned=self._banned(),
        )
        return decoding.run(weight_version=self.weight_version)

    def _refuse_impossible(self, request: SamplingRequest, index: int) -> None:
        limit = self.model.config.get_text_config().max_position_embeddings
        if not request.prompt:
            raise ValueError(
                f"request {index} has an empty prompt; give it at least one token, such as the begin token"
            )
        if request.max_tokens < 1:
            raise ValueError(f"request {index} has max_tokens {request.max_tokens}; ask for at least 1")
        check_images(self.model, request.prompt, request.images, row=f"request {index}")
        if len(request.prompt) + request.max_tokens > limit:
            raise ValueError(
                f"request {index} needs {len(request.prompt)} + {request.max_tokens} positions but the model has "
                f"{limit}; shorten the prompt or lower max_tokens"
            )
        if self._drafts(request) < 0 or (self._drafts(request) and self._drafter is None):
            raise ValueError(
                f"request {index} has draft_tokens {request.draft_tokens}; they need a drafter and are at least 0"
            )
        if request.temperature < 0 or not 0 < request.top_p <= 1 or request.top_k < 0:
            raise ValueError(
                f"request {index} has temperature {request.temperature}, top_p {request.top_p}, top_k {request.top_k}; "
                "they should be at least 0, in (0, 1], and at least 0"
            )

    @torch.inference_mode()
    def _decode(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        """Decode prompts of one length to their end, one forward pass a token for all rows."""
        device = self.model.device
        temperature = torch.tensor([request.temperature for request in requests], dtype=torch.float64, device=device)
        top_p = torch.tensor([request.top_p for request in requests], dtype=torch.float64, device=device)
        top_k = torch.tensor([request.top_k for request in requests], device=device)
        budgets = torch.tensor([request.max_tokens for request in requests], device=device)
        uniforms = uniform_numbers(requests).to(device)  # (B, T)
        lengths = torch.zeros_like(budgets)
        running = torch.ones_like(budgets, dtype=torch.bool)
        tokens: list[torch.Tensor] = []  # (B,) each, as are the log-probs; unread once a row has finished
        log_probs: list[torch.Tensor] = []
        banned = self._banned()
        logits, cache, positions = self._prefill(requests)
        while True:
            chosen, chosen_log_probs = choose_tokens(
                logits, uniforms[:, len(tokens)], temperature=temperature, top_p=top_p, top_k=top_k, banned=banned
            )
            tokens.append(chosen)
            log_probs.append(chosen_log_probs)
            lengths += running
            running &= lengths < budgets
            if self._eos_id is not None:
                running &= chosen != self._eos_id
            if not running.any():
                return self._samples(lengths, torch.stack(tokens, dim=1), torch.stack(log_probs, dim=1))
            # Finished rows stay in the batch: a shrinking one would move the others' logits by rounding.
            ids = torch.where(running, chosen, self._filler)[:, None]
            at = positions.inputs(len(tokens) - 1)
            output = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **at)
            logits = output.logits[:, -1]

    def _banned(self) -> torch.Tensor | None:
        """Ids that are never drawn, `(K,)`; None where there are none."""
        return torch.tensor(self._placeholders, device=self.model.device) if self._placeholders else None

    def _prefill(self, requests: Sequence[SamplingRequest]) -> tuple[torch.Tensor, DynamicCache, Positions]:
        """Logits `(B, V)` of each request's first token, the cache behind it and where the responses stand."""
        first = prefill(self.model, requests)
        length = len(requests[0].prompt)
        cache = roomy_cache(self.model.config, capacity=length + max(request.max_tokens for request in requests))
        output = self.model(**first.inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        if first.shared:
            cache.reorder_cache(first.rows)  # type: ignore[arg-type]  # the library's name for a tensor of int64
        return output.logits[:, -1][first.rows], cache, first.positions

    def _samples(self, lengths: torch.Tensor, tokens: torch.Tensor, log_probs: torch.Tensor) -> list[Sample]:
        """What each row came to, from `(B,)` and `(B, T)`."""
        return [
            Sample(
                tokens=tuple(row_tokens[:length]),
                log_probs=tuple(row_log_probs[:length]),
                finish_reason=FinishReason.STOP if row_tokens[length - 1] == self._eos_id else FinishReason.LENGTH,
                weight_version=self.weight_version,
                target_forwards=length,
            )
            for length, row_tokens, row_log_probs in zip(
                lengths.tolist(), tokens.tolist(), log_probs.tolist(), strict=True
            )
        ]


def uniform_numbers(requests: Sequence[SamplingRequest]) -> torch.Tensor:
    """The numbers in [0, 1) that a request's tokens are drawn with, `(B, T)` float64, 0 behind its budget.

    One generator a request, so they depend on its seed alone. A longer budget continues the same numbers.
    """
    numbers = torch.zeros(len(requests), max(request.max_tokens for request in requests), dtype=torch.float64)
    for row, request in zip(numbers, requests, strict=True):
        count = request.max_tokens
        row[:count] = torch.rand(count, generator=torch.Generator().manual_seed(request.seed), dtype=torch.float64)
    return numbers
