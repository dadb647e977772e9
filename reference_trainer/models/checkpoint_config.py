"""What a folder with a user's weights says of itself, before any weight is read. Nothing in it is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from reference_trainer.config import ConfigError, ModelConfig
from reference_trainer.data.tokenizer import VOCAB_SIZE
from reference_trainer.models.families import FAMILIES


def checkpoint_config(model: ModelConfig) -> PreTrainedConfig:
    """The configuration in the folder `model.checkpoint`. Its ids for an image become the byte tokenizer's.

    Raises ConfigError when the folder or its config.json can't be read, is of another architecture, is quantised, or
    has a vocabulary that the tokenizer does not fit into.
    """
    folder = checkpoint_folder(model)
    written = _read(folder / "config.json")
    family = FAMILIES[model.architecture]
    found = _architecture(written)
    if found != family.model_class.__name__:
        raise ConfigError(
            f'"model.checkpoint" {folder} holds {_named(found)}, not the "{model.architecture}" that '
            "model.architecture says; change one of them"
        )
    if written.get("quantization_config"):
        raise ConfigError(f'"model.checkpoint" {folder} is quantised; give weights that can be trained')
    try:
        config = family.config_class.from_dict(written)
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{folder / 'config.json'} does not make a {family.config_class.__name__}: {reason}"
        ) from None
    size = config.get_text_config().vocab_size
    if size < VOCAB_SIZE:
        raise ConfigError(
            f'"model.checkpoint" {folder} has a vocabulary of {size} ids and the tokenizer has {VOCAB_SIZE}; '
            "give weights with at least as many"
        )
    for name, token in family.image_tokens.items():  # which id stands for an image is the tokenizer's word
        setattr(config, name, token)
    return config


def checkpoint_folder(model: ModelConfig) -> Path:
    """The folder that `model.checkpoint` names. Raises ConfigError when there is none."""
    assert model.checkpoint is not None
    folder = Path(model.checkpoint)
    if not folder.is_dir():
        raise ConfigError(f'"model.checkpoint" {folder} is no folder; give the one that config.json lies in')
    return folder


def _read(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f'"model.checkpoint" {path.parent} has no config.json; give a complete folder') from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {' '.join(str(error).split())}; give a complete folder") from None
    if not isinstance(written, dict):
        raise ConfigError(f"{path} holds a {type(written).__name__}; it should be a mapping")
    return written


def _architecture(written: dict[str, Any]) -> str:
    """The class the weights were saved from; where that is not said, the one that the model type means."""
    named = written.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    types = {family.config_class.model_type: family.model_class.__name__ for family in FAMILIES.values()}
    kind = str(written.get("model_type"))
    return types.get(kind, kind)


def _named(model_class: str) -> str:
    known = [name for name, family in FAMILIES.items() if family.model_class.__name__ == model_class]
    return f'"{known[0]}" ({model_class})' if known else f"a {model_class}, which this trainer does not know"
