"""The transformers configuration that a model section means, or the reason why it means none."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from reference_trainer.config import ConfigError, ModelConfig
from reference_trainer.config_errors import nearest_name
from reference_trainer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE
from reference_trainer.models.checkpoint_config import checkpoint_config
from reference_trainer.models.families import FAMILIES, Family

# Parts of an outer configuration that this trainer has no data for: a tower that is never used would be sent with
# every weight sync, and its parameters would get no gradient.
_WITHOUT_DATA = frozenset({"audio_config"})


def transformers_config(model: ModelConfig) -> PreTrainedConfig:
    """The family's configuration, or the checkpoint's. Token ids and vocabulary are the byte tokenizer's unless given.

    Raises ConfigError for a keyword the family does not have, at any depth (transformers would keep it and ignore it).
    """
    if model.checkpoint is not None:
        return checkpoint_config(model)
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
    vocabulary = given.get("vocab_size", VOCAB_SIZE)
    if not isinstance(vocabulary, int) or vocabulary < VOCAB_SIZE:
        raise ConfigError(
            f"model.config makes a vocabulary of {vocabulary} ids and the tokenizer has {VOCAB_SIZE}; "
            "leave vocab_size out, or raise it"
        )
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
