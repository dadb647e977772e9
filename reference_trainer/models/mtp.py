"""Multi-token prediction: decoder blocks of the policy's own kind over its last hidden states.

DeepSeek-V3 (arXiv:2412.19437, section 2.2) as Qwen3.5 builds it, names included: the normalised embedding of the known
token and the normalised hidden state before it are joined, brought to the model's width, and go through full-attention
layers. Embedding, rotary frequencies and head are the policy's. Positions are those of the hidden states.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask

from reference_trainer.config import DrafterConfig
from reference_trainer.data.layout import RowBatch
from reference_trainer.models.drafter import Drafting, forget_drafts, unsuited
from reference_trainer.models.outputs import Head, head_of
from reference_trainer.models.rewinding import RewindableCache


class Mtp(nn.Module):
    """`policy.mtp`."""

    def __init__(self, config: PreTrainedConfig, *, layer: type[nn.Module], norm: type[nn.Module]) -> None:
        """`config` is the policy's text configuration with as many full-attention layers as this has."""
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.pre_fc_norm_hidden = norm(width, eps=eps)
        self.pre_fc_norm_embedding = norm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList(layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = norm(width, eps=eps)

    def forward(
        self,
        policy: PreTrainedModel,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        *,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: DynamicCache | None = None,
    ) -> torch.Tensor:
        """States `(B, N, H)` at the pairs of hidden `(B, N, H)` and the token after each, `(B, N)`."""
        embedded = policy.get_input_embeddings()(tokens).detach()
        joined = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
        x = self.fc(torch.cat(joined, dim=-1))
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=cache,
            position_ids=position_ids,
        )
        rotations = policy.get_decoder().rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(
                x,
                attention_mask=mask,
                position_ids=position_ids,
                position_embeddings=rotations,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return self.norm(x)

    def states(self, policy: PreTrainedModel, hidden: torch.Tensor, batch: RowBatch) -> tuple[torch.Tensor, Head]:
        """As in `TrainedDrafter`."""
        states = self(
            policy,
            hidden[:, :-1],
            batch.input_ids[:, 1:],
            position_ids=batch.position_ids[:, :-1],
            attention_mask=batch.attention_mask[:, :-1],
        )
        head = head_of(policy)
        return states, Head(weight=head.weight.detach(), softcap=head.softcap)

    def drafting(self, policy: PreTrainedModel) -> Drafting:
        """As in `Drafter`."""
        return _MtpDrafting(self, policy)


class _MtpDrafting:
    """Its cache holds a pair for each settled position, and behind them those of the drafts under way."""

    def __init__(self, mtp: Mtp, policy: PreTrainedModel) -> None:
        self._mtp, self._policy = mtp, policy
        self._head = head_of(policy)
        self._cache = RewindableCache(DynamicCache(config=mtp.config))
        self._state = torch.empty(0)  # (B, 1, H) at the last pair
        self._drafts = 0

    def settle(self, tokens: torch.Tensor, hidden: torch.Tensor, cache: Cache) -> None:
        if self._drafts:
            forget_drafts(self._cache, self._drafts)
            self._drafts = 0
        self._read(hidden, tokens[:, 1:], at=self._cache.length)
        self._cache.keep(processed=hidden.shape[1], kept=hidden.shape[1])

    def propose(self, last: torch.Tensor | None) -> torch.Tensor:
        if last is not None:
            self._read(self._state, last[:, None], at=self._cache.length + self._drafts)
            self._drafts += 1
        return self._head.logits(self._state[:, -1])

    def _read(self, hidden: torch.Tensor, tokens: torch.Tensor, *, at: int) -> None:
        positions = torch.arange(at, at + tokens.shape[1], device=tokens.device).expand_as(tokens)
        states = self._mtp(self._policy, hidden, tokens, position_ids=positions, cache=self._cache.cache)
        self._state = states[:, -1:]


def build_mtp(policy: PreTrainedModel, drafter: DrafterConfig) -> Mtp:
    """An MTP module for the policy. Raises ConfigError when its decoder layers need more than hidden states."""
    decoder: Any = policy.get_decoder()
    layer = type(decoder.layers[-1])
    if "per_layer_input" in inspect.signature(layer.forward).parameters:
        raise unsuited(
            policy,
            "mtp",
            because="its decoder layers need an input of their own for each token and share keys and values",
            remedy='use "assistant"',
        )
    if drafter.config:
        raise unsuited(
            policy,
            "mtp",
            because=f"its layers are the policy's, yet model.drafter.config gives {sorted(drafter.config)}",
            remedy="leave model.drafter.config out",
        )
    config = copy.deepcopy(decoder.config)
    config.num_hidden_layers = drafter.layers
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = ["full_attention"] * drafter.layers
    mtp = Mtp(config, layer=layer, norm=type(decoder.norm))
    mtp.apply(policy._init_weights)
    return mtp
