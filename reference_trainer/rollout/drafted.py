"""Decodes rows of one prompt length with drafts: fewer forward passes of the target, the same distribution.

A round: the drafter proposes k tokens a row, one forward pass of the target judges them, and every row goes on by the
same number of tokens, one more than the fewest that a row which goes on had accepted, so that no row is ever padded.
That is exact: what a row emits at a position, and whether the round reaches it, is decided by numbers of that position
and earlier ones alone, three of them for each (draft, acceptance, the target's own choice). With drafts a seed decides
a draw together with the rows that it is decoded with.

A target with a recurrent state forgets a round in which a draft was rejected, and reads its tokens again at the
beginning of the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from reference_trainer.models.drafter import Drafter
from reference_trainer.models.outputs import head_of
from reference_trainer.models.rewinding import RewindableCache
from reference_trainer.rollout.engine import FinishReason, Sample, SamplingRequest
from reference_trainer.rollout.kv_cache import roomy_cache
from reference_trainer.rollout.prefill import prefill
from reference_trainer.rollout.speculative import Verdict, propose, verify

_LONGEST_PASS = 64  # tokens; a round that would read again more than this makes no drafts, so that all of it stays


@dataclass
class _Row:
    budget: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    forwards: int = 0
    reason: FinishReason | None = None


class DraftedDecoding:
    """One batch, from its prompts to its samples."""

    def __init__(
        self,
        model: PreTrainedModel,
        drafter: Drafter,
        requests: Sequence[SamplingRequest],
        *,
        draft_tokens: int,
        eos_id: int | None,
        filler: int,
        banned: torch.Tensor | None = None,
    ) -> None:
        """`draft_tokens` from 1 on; `filler` is what a finished row goes on with, unread; `banned` is never drawn."""
        device = model.device
        self._model, self._head = model, head_of(model)
        self._drafting = drafter.drafting(model)
        self._requests, self._draft_tokens, self._eos_id, self._filler = requests, draft_tokens, eos_id, filler
        self._banned = banned
        self._settings = {
            "temperature": torch.tensor([one.temperature for one in requests], dtype=torch.float64, device=device),
            "top_p": torch.tensor([one.top_p for one in requests], dtype=torch.float64, device=device),
            "top_k": torch.tensor([one.top_k for one in requests], device=device),
        }
        self._uniforms = round_numbers(requests).to(device)  # (B, T, 3): draft, acceptance, choice
        self._rows = [
            _Row(budget=one.max_tokens, drafted=[0] * draft_tokens, accepted=[0] * draft_tokens) for one in requests
        ]
        self._first = prefill(model, requests)
        self._prompt_length = len(requests[0].prompt)
        self._ids = torch.tensor([one.prompt for one in requests], device=device)  # (B, length so far)
        longest = max(one.max_tokens for one in requests)
        self._cache = RewindableCache(roomy_cache(model.config, capacity=self._ids.shape[1] + longest + draft_tokens))
        self._settled = 0  # positions whose hidden states the drafter has
        self._emitted = 0  # tokens of each row that goes on

    @torch.inference_mode()
    def run(self, *, weight_version: int) -> list[Sample]:
        self._round(drafts=0)
        while left := max((row.budget - self._emitted for row in self._rows if row.reason is None), default=0):
            again = self._ids.shape[1] - self._cache.length
            wanted = min(self._draft_tokens, left - 1)
            self._round(drafts=wanted if again + wanted <= _LONGEST_PASS else 0)
        return [
            Sample(
                tokens=tuple(row.tokens),
                log_probs=tuple(row.log_probs),
                finish_reason=row.reason,
                weight_version=weight_version,
                drafted=tuple(row.drafted),
                accepted=tuple(row.accepted),
                target_forwards=row.forwards,
            )
            for row in self._rows
            if row.reason is not None
        ]

    def _round(self, *, drafts: int) -> None:
        numbers = self._uniforms[:, self._emitted : self._emitted + drafts + 1]
        tokens, q = self._propose(numbers[..., 0], count=drafts)
        start, waiting = self._cache.length, self._ids.shape[1] - self._cache.length
        hidden = self._read(torch.cat([self._ids[:, start:], tokens], dim=-1))  # (B, waiting + k, H)
        verdict = verify(
            self._head.logits(hidden[:, waiting - 1 :]),
            tokens,
            q,
            numbers[:, :drafts, 1],
            numbers[..., 2],
            **self._settings,
            banned=self._banned,
        )
        running = torch.tensor([row.reason is None for row in self._rows], device=tokens.device)
        steps = self._emit(verdict, drafts=drafts)
        if all(row.reason is not None for row in self._rows):
            return
        following = torch.where(running[:, None], verdict.tokens[:, :steps], self._filler)
        self._ids = torch.cat([self._ids, following], dim=-1)
        self._cache.keep(processed=waiting + drafts, kept=waiting + steps - 1)
        end = start + waiting + steps - 1
        self._drafting.settle(
            self._ids[:, self._settled : end + 1], hidden[:, self._settled - start : end - start], self._cache.cache
        )
        self._settled = end
        self._emitted += steps

    def _propose(self, uniforms: torch.Tensor, *, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts `(B, k)` and the distributions `(B, k, V)` that they were drawn from."""
        tokens: list[torch.Tensor] = []
        distributions: list[torch.Tensor] = []
        for place in range(count):
            logits = self._drafting.propose(tokens[-1] if tokens else None)
            token, q = propose(logits, uniforms[:, place], **self._settings, banned=self._banned)
            tokens.append(token)
            distributions.append(q)
        if not tokens:
            rows, vocabulary = len(self._requests), self._head.weight.shape[0]
            return self._ids[:, :0], torch.zeros(rows, 0, vocabulary, dtype=torch.float64, device=self._ids.device)
        return torch.stack(tokens, dim=1), torch.stack(distributions, dim=1)

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states `(B, N, H)` of the target over the next tokens `(B, N)`; equal prompts are read once."""
        self._cache.remember()
        if self._cache.length == 0:  # the prompts, all of them and no more
            hidden = self._forward(self._first.inputs)[self._first.rows]
            self._cache.reorder(self._first.rows)
            return hidden
        plain = torch.arange(self._cache.length, self._cache.length + ids.shape[1], device=ids.device)
        behind = self._first.positions.inputs(self._cache.length - self._prompt_length, ids.shape[1])
        return self._forward({"input_ids": ids, "position_ids": plain.expand_as(ids), **behind})

    def _forward(self, inputs: dict[str, Any]) -> torch.Tensor:
        output = self._model.model(**inputs, past_key_values=self._cache.cache, use_cache=True)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def _emit(self, verdict: Verdict, *, drafts: int) -> int:
        """Write down what the rows that go on have come to; return the number of tokens by which all go on."""
        judged = list(
            zip(self._rows, verdict.accepted.tolist(), verdict.tokens.tolist(), verdict.log_probs.tolist(), strict=True)
        )
        judged = [one for one in judged if one[0].reason is None]
        ends = [self._end(row, tokens[: accepted + 1]) for row, accepted, tokens, _ in judged]
        # A row that ends in this round holds up nobody, and needs no more than its end.
        going_on = [accepted for (_, accepted, _, _), end in zip(judged, ends, strict=True) if end is None]
        steps = min(going_on) + 1 if going_on else max(end for end in ends if end is not None) + 1
        for (row, accepted, tokens, log_probs), end in zip(judged, ends, strict=True):
            row.forwards += 1
            reached = drafts if end is None else min(drafts, end + 1)
            for place in range(reached):
                row.drafted[place] += 1
                row.accepted[place] += place < accepted
            count = steps if end is None else min(steps, end + 1)
            row.tokens += tokens[:count]
            row.log_probs += log_probs[:count]
            if row.tokens[-1] == self._eos_id:
                row.reason = FinishReason.STOP
            elif len(row.tokens) == row.budget:
                row.reason = FinishReason.LENGTH
        return steps

    def _end(self, row: _Row, tokens: list[int]) -> int | None:
        """Place of the token that ends the row; None when it goes on behind all of them."""
        for place, token in enumerate(tokens):
            if token == self._eos_id or len(row.tokens) + place + 1 == row.budget:
                return place
        return None


def round_numbers(requests: Sequence[SamplingRequest]) -> torch.Tensor:
    """Three numbers in [0, 1) for each token of each request, `(B, T, 3)` float64, 0 behind its budget.

    One generator a request, so they depend on its seed alone.
    """
    numbers = torch.zeros(len(requests), max(one.max_tokens for one in requests), 3, dtype=torch.float64)
    for row, one in zip(numbers, requests, strict=True):
        generator = torch.Generator().manual_seed(one.seed)
        row[: one.max_tokens] = torch.rand(one.max_tokens, 3, generator=generator, dtype=torch.float64)
    return numbers
