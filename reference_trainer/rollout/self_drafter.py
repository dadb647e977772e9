"""The policy as its own drafter: every draft is accepted. For checks, and to measure what drafts can bring at most."""

from __future__ import annotations

import torch
from transformers import Cache, PreTrainedModel

from reference_trainer.models.drafter import Drafting, forget_drafts
from reference_trainer.models.outputs import head_of
from reference_trainer.models.rewinding import RewindableCache
from reference_trainer.rollout.kv_cache import roomy_cache


class SelfDrafter:
    """A `Drafter` equal to its target."""

    def drafting(self, policy: PreTrainedModel) -> Drafting:
        return _SelfDrafting(policy)


class _SelfDrafting:
    """A forward pass of the policy over a cache of its own for each draft."""

    def __init__(self, policy: PreTrainedModel) -> None:
        self._policy, self._head = policy, head_of(policy)
        self._cache = RewindableCache(roomy_cache(policy.config, capacity=64))
        self._waiting: torch.Tensor | None = None  # (B, n): known tokens that the cache lacks
        self._drafts = 0

    def settle(self, tokens: torch.Tensor, hidden: torch.Tensor, cache: Cache) -> None:
        if self._drafts:
            forget_drafts(self._cache, self._drafts)
            self._drafts = 0
        # The first of them was the last of the call before.
        self._waiting = tokens if self._waiting is None else torch.cat([self._waiting, tokens[:, 1:]], dim=-1)

    def propose(self, last: torch.Tensor | None) -> torch.Tensor:
        if last is None:
            assert self._waiting is not None  # `settle` comes first
            logits = self._read(self._waiting)
            self._cache.keep(processed=self._waiting.shape[1], kept=self._waiting.shape[1])
            self._waiting = self._waiting[:, :0]
            self._cache.remember()  # of all drafts to come
            return logits
        self._drafts += 1
        return self._read(last[:, None])

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        at = self._cache.length + (self._drafts - 1 if self._drafts else 0)
        hidden = self._policy.model(
            input_ids=ids,
            position_ids=torch.arange(at, at + ids.shape[1], device=ids.device).expand_as(ids),
            past_key_values=self._cache.cache,
            use_cache=True,
        ).last_hidden_state
        return self._head.logits(hidden[:, -1])
