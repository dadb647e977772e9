"""What an architecture's name means: the transformers classes, and what their configuration is given unsaid.

Nothing else reads the name: what a model can do is read from the model that was built (`capabilities.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from transformers import (
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from reference_trainer.config import Architecture
from reference_trainer.data.tokenizer import IMAGE_ID, VISION_END_ID, VISION_START_ID


@dataclass(frozen=True, kw_only=True)
class Family:
    """The classes of an architecture."""

    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    image_tokens: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Ids of the outer configuration that stand for an image in a row of tokens; none without a vision tower."""
    also_accepts: frozenset[str] = frozenset()
    """Keywords that the text configuration takes from **kwargs and turns into others: they are no fields of it."""

    @property
    def sees(self) -> bool:
        """Whether the model has a vision tower, and so a configuration of two parts."""
        return bool(self.image_tokens)


_GEMMA4_CONVERTS = frozenset({"global_head_dim", "num_global_key_value_heads", "per_layer_config"})
_QWEN3_5_CONVERTS = frozenset({"full_attention_interval"})

FAMILIES: Mapping[Architecture, Family] = MappingProxyType(
    {
        "qwen3": Family(config_class=Qwen3Config, model_class=Qwen3ForCausalLM),
        "qwen3.5": Family(
            config_class=Qwen3_5TextConfig, model_class=Qwen3_5ForCausalLM, also_accepts=_QWEN3_5_CONVERTS
        ),
        "qwen3.5-moe": Family(
            config_class=Qwen3_5MoeTextConfig, model_class=Qwen3_5MoeForCausalLM, also_accepts=_QWEN3_5_CONVERTS
        ),
        "qwen3.5-vl": Family(
            config_class=Qwen3_5Config,
            model_class=Qwen3_5ForConditionalGeneration,
            image_tokens=MappingProxyType(
                {
                    "image_token_id": IMAGE_ID,
                    "vision_start_token_id": VISION_START_ID,
                    "vision_end_token_id": VISION_END_ID,
                }
            ),
            also_accepts=_QWEN3_5_CONVERTS,
        ),
        "gemma4": Family(config_class=Gemma4TextConfig, model_class=Gemma4ForCausalLM, also_accepts=_GEMMA4_CONVERTS),
        "gemma4-vl": Family(
            config_class=Gemma4Config,
            model_class=Gemma4ForConditionalGeneration,
            image_tokens=MappingProxyType(
                {"image_token_id": IMAGE_ID, "boi_token_id": VISION_START_ID, "eoi_token_id": VISION_END_ID}
            ),
            also_accepts=_GEMMA4_CONVERTS,
        ),
        "llama": Family(config_class=LlamaConfig, model_class=LlamaForCausalLM),
    }
)
