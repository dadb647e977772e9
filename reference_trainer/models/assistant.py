"""Gemma4's drafter: the library's assistant, whose every layer reads keys and values of the policy's.

Each draft joins the embedding of the last token with the policy's hidden state before it (its own state from the second
draft on) and looks at the keys and values that the policy has of the tokens before: all of them in a full-attention
layer, those that the window of the token itself reaches in a sliding one. All drafts of a round stand at the position
of the last settled token.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import Cache, Gemma4AssistantConfig, Gemma4AssistantForCausalLM, PreTrainedConfig, PreTrainedModel

from reference_trainer.config import ConfigError, DrafterConfig
from reference_trainer.config_errors import nearest_name
from reference_trainer.data.layout import RowBatch
from reference_trainer.models.drafter import Drafting, unsuited
from reference_trainer.models.inputs import model_inputs
from reference_trainer.models.outputs import Head

KeysAndValues = dict[str, tuple[torch.Tensor, torch.Tensor]]
_KINDS = ("full_attention", "sliding_attention")


class Assistant(Gemma4AssistantForCausalLM):
    """`policy.assistant`."""

    def read(
        self,
        policy: PreTrainedModel,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        *,
        position_ids: torch.Tensor,
        masks: dict[str, torch.Tensor | None],
        shared: KeysAndValues,
    ) -> torch.Tensor:
        """States `(B, N, D)` at the pairs of hidden `(B, N, H)` and the token after each, `(B, N)`.

        Masks are added to scores, `(B, 1, N, S)` for S keys. (The class's own forward pass takes one query only.)
        """
        embedded = policy.get_input_embeddings()(tokens).detach()
        output = self.model(
            inputs_embeds=self.pre_projection(torch.cat([embedded, hidden], dim=-1)),
            attention_mask=masks,
            position_ids=position_ids,
            shared_kv_states=shared,
            use_cache=False,
        )
        states: torch.Tensor = output.last_hidden_state
        return states

    def states(self, policy: PreTrainedModel, hidden: torch.Tensor, batch: RowBatch) -> tuple[torch.Tensor, Head]:
        """As in `TrainedDrafter`. Costs a forward pass of the policy without a graph, for its keys and values."""
        inputs = model_inputs(policy.model, batch)
        with torch.no_grad():
            shared = policy.model(**inputs, use_cache=False, return_shared_kv_states=True).shared_kv_states
        pairs = hidden.shape[1] - 1
        states = self.read(
            policy,
            hidden[:, :-1],
            batch.input_ids[:, 1:],
            position_ids=batch.position_ids[:, :-1] + 1,
            masks=_training_masks(
                batch.attention_mask[:, :-1], window=self.model.config.sliding_window, dtype=hidden.dtype
            ),
            shared={kind: tuple(states[..., :pairs, :].detach() for states in shared[kind]) for kind in _KINDS},
        )
        return states, Head(weight=self.lm_head.weight)

    def drafting(self, policy: PreTrainedModel) -> Drafting:
        """As in `Drafter`."""
        return _AssistantDrafting(self, policy)


class _AssistantDrafting:
    """It keeps no cache: the target's is its own."""

    def __init__(self, assistant: Assistant, policy: PreTrainedModel) -> None:
        self._assistant, self._policy = assistant, policy
        self._sources = _sources(policy)
        self._token = self._hidden = torch.empty(0)  # (B, 1), (B, 1, H): the pair to read next
        self._shared: KeysAndValues = {}
        self._position = 0

    def settle(self, tokens: torch.Tensor, hidden: torch.Tensor, cache: Cache) -> None:
        self._token, self._hidden = tokens[:, -1:], hidden[:, -1:]
        self._position += hidden.shape[1]
        layers: Any = cache.layers
        self._shared = {kind: (layers[index].keys, layers[index].values) for kind, index in self._sources.items()}

    def propose(self, last: torch.Tensor | None) -> torch.Tensor:
        state = self._assistant.read(
            self._policy,
            self._hidden,
            self._token if last is None else last[:, None],
            position_ids=torch.full_like(self._token, self._position),
            masks=dict.fromkeys(_KINDS),  # what the cache holds is what may be seen
            shared=self._shared,
        )
        self._hidden = self._assistant.post_projection(state)
        logits: torch.Tensor = self._assistant.lm_head(state[:, -1])
        return logits


def build_assistant(policy: PreTrainedModel, drafter: DrafterConfig) -> Assistant:
    """An assistant for the policy. Raises ConfigError when its layers don't share keys and values."""
    if set(_sources(policy)) != set(_KINDS):
        raise unsuited(
            policy,
            "assistant",
            because="it shares no keys and values of full-attention and sliding layers",
            remedy='use "mtp"',
        )
    text = policy.config.get_text_config()
    known = sorted(set(inspect.signature(type(text).__init__).parameters) - {"self"})
    for key, value in drafter.config.items():
        if key not in known:
            raise ConfigError(f'unknown key "model.drafter.config.{key}" (value {value!r}); {nearest_name(key, known)}')
    try:
        config = Gemma4AssistantConfig(
            text_config=type(text)(**{**_text_values(text, layers=drafter.layers), **drafter.config}),
            backbone_hidden_size=text.hidden_size,
            tie_word_embeddings=True,
        )
        config._attn_implementation = policy.config._attn_implementation
        return Assistant(config)
    except (StrictDataclassError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"model.drafter does not make an assistant: {reason}") from None


def _text_values(text: PreTrainedConfig, *, layers: int) -> dict[str, Any]:
    """The policy's own, less what an assistant can't have; heads as the keys and values that it reads."""
    full = text.per_layer_config[text.layer_types.index("full_attention")]
    kept = text.to_dict()
    for name in ("per_layer_config", "transformers_version", "model_type"):
        kept.pop(name, None)
    return kept | {
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention"] * (layers - 1) + ["full_attention"],
        "num_kv_shared_layers": layers,
        "global_head_dim": full.head_dim,
        "num_global_key_value_heads": full.num_key_value_heads,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
    }


def _sources(policy: PreTrainedModel) -> dict[str, int]:
    """The layer whose keys and values are shared, for each kind of attention."""
    layers: list[Any] = [getattr(layer, "self_attn", None) for layer in policy.get_decoder().layers]
    return {
        layer.layer_type: index for index, layer in enumerate(layers) if getattr(layer, "store_full_length_kv", False)
    }


def _training_masks(present: torch.Tensor, *, window: int, dtype: torch.dtype) -> dict[str, torch.Tensor | None]:
    """`(B, 1, N, N)` from present `(B, N)`: the pair at i sees keys up to i, in a sliding layer the last window - 1.

    The token of the pair stands at i + 1 and would fill the window's last place itself.
    """
    places = torch.arange(present.shape[1], device=present.device)
    back = places[:, None] - places  # (N, N): how far behind a key lies
    masks: dict[str, torch.Tensor | None] = {}
    for kind, reach in zip(_KINDS, (len(places), window - 1), strict=True):
        seen = ((back >= 0) & (back < reach))[None] & present[:, None, :].bool()
        # not -inf: a row of padding sees nothing, and must not become NaN
        masks[kind] = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
            ~seen, torch.finfo(dtype).min
        )[:, None]
    return masks
