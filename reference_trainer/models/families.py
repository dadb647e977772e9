"""What an architecture's name means: the transformers classes, and what their configuration is given unsaid.

Nothing else reads the name: what a model can do is read from the model that was built (`capabilities.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from huggingface_hub.errors import StrictDataclassError
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

from reference_trainer.config import Architecture, ConfigError, ModelConfig
from reference_trainer.config_errors import nearest_name
from reference_trainer.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    IMAGE_ID,
    PAD_ID,
    VISION_END_ID,
    VISION_START_ID,
    VOCAB_SIZE,
)


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
# Parts of an outer configuration that this trainer has no data for: a tower that is never used would be sent with
# every weight sync, and its parameters would get no gradient.
_WITHOUT_DATA = frozenset({"audio_config"})


def transformers_config(model: ModelConfig) -> PreTrainedConfig:
    """The family's configuration. Token ids and vocabulary are the byte tokenizer's unless given.

    Raises ConfigError for a keyword the family does not have, at any depth (transformers would keep it and ignore it).
    """
    family = FAMILIES[model.architecture]
    given = _refuse_unknown(model.config, family.config_class, family.also_accepts, path="model.config")
    if not family.sees:
        keywords = {**_text_defaults(family.config_class, given), **given}
    else:
        keywords = {**family.image_tokens, **given, **_parts(family, given)}
    with told_as_config_error(family.config_class):
        config = family.config_class(**keywords)
    if family.sees:
        _require_image_width(config)
    return config


def _parts(family: Family, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Text and vision part of an outer configuration. What must agree between them is filled in once."""
    for name in ("text_config", "vision_config"):
        if not given.get(name):
            raise ConfigError(f'"model.config.{name}" is missing; a model that takes images needs both parts')
    text, vision = given["text_config"], given["vision_config"]
    text = {**_text_defaults(family.config_class.sub_configs["text_config"], text), **text}
    if "out_hidden_size" in _fields(family.config_class.sub_configs["vision_config"]) and "hidden_size" in text:
        vision = {"out_hidden_size": text["hidden_size"], **vision}
    parts = {"text_config": text, "vision_config": vision}
    if "tie_word_embeddings" in given:  # the outer word decides in transformers: say it to both
        text.setdefault("tie_word_embeddings", given["tie_word_embeddings"])
    return parts


def _text_defaults(config_class: type[PreTrainedConfig], given: Mapping[str, Any]) -> dict[str, int]:
    tokens = {"vocab_size": VOCAB_SIZE, "pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    if "vocab_size_per_layer_input" in _fields(config_class):
        tokens["vocab_size_per_layer_input"] = given.get("vocab_size", VOCAB_SIZE)
    return tokens


def _fields(config_class: type[PreTrainedConfig]) -> set[str]:
    return set(inspect.signature(config_class.__init__).parameters) - {"self"}


def _refuse_unknown(
    given: Mapping[str, Any], config_class: type[PreTrainedConfig], also: frozenset[str], *, path: str
) -> dict[str, Any]:
    """The keywords, copied, when the configuration has all of them and so have its parts."""
    parts = config_class.sub_configs
    known = _fields(config_class) - _WITHOUT_DATA
    if "text_config" not in parts:
        known |= also
    for key, value in given.items():
        if key in _WITHOUT_DATA & _fields(config_class):
            raise ConfigError(f'"{path}.{key}" asks for a part that this trainer has no data for; leave it out')
        if key not in known:
            raise ConfigError(f'unknown key "{path}.{key}" (value {value!r}); {nearest_name(key, sorted(known))}')
        if key in parts and not isinstance(value, Mapping):
            raise ConfigError(f'"{path}.{key}" is {value!r}; it should be a mapping')
    return {
        key: _refuse_unknown(value, parts[key], also if key == "text_config" else frozenset(), path=f"{path}.{key}")
        if key in parts
        else value
        for key, value in given.items()
    }


def _require_image_width(config: PreTrainedConfig) -> None:
    width = getattr(config.vision_config, "out_hidden_size", None)
    hidden = config.get_text_config().hidden_size
    if width is not None and width != hidden:
        raise ConfigError(
            f'"model.config.vision_config.out_hidden_size" is {width} and the text part\'s hidden_size is {hidden}; '
            "make them equal, or leave the first out"
        )


@contextmanager
def told_as_config_error(target: type) -> Iterator[None]:
    """What the library raises for values that it can't use, in one sentence."""
    try:
        yield
    except (StrictDataclassError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"model.config does not make a {target.__name__}: {reason}") from None
