"""A policy from a configuration alone: the family's real transformers class with seeded random weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from reference_trainer.config import ConfigError, ModelConfig
from reference_trainer.config_errors import nearest_name
from reference_trainer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE

FAMILIES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3.5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
    "gemma4": (Gemma4TextConfig, Gemma4ForCausalLM),
}
# Keywords that a configuration takes from **kwargs and turns into others, so that they are no fields of it.
_CONVERTED = {"gemma4": {"global_head_dim", "num_global_key_value_heads", "per_layer_config"}}


def transformers_config(model: ModelConfig) -> PreTrainedConfig:
    """The family's configuration. Token ids and vocabulary are the byte tokenizer's unless given.

    Raises ConfigError for a keyword the family does not have (transformers would keep it and ignore it).
    """
    config_class, _ = FAMILIES[model.architecture]
    known = set(inspect.signature(config_class.__init__).parameters) - {"self"}
    known |= _CONVERTED.get(model.architecture, set())
    for key, value in model.config.items():
        if key not in known:
            raise ConfigError(f'unknown key "model.config.{key}" (value {value!r}); {nearest_name(key, sorted(known))}')
    tokens = {"vocab_size": VOCAB_SIZE, "pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    if "vocab_size_per_layer_input" in known:
        tokens["vocab_size_per_layer_input"] = model.config.get("vocab_size", VOCAB_SIZE)
    with _told_as_config_error(config_class):
        return config_class(**{**tokens, **model.config})


def build_policy(model: ModelConfig, *, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    """The causal language model, in evaluation mode (the trainer uses no dropout), on the CPU.

    Equal arguments give bit-equal weights and leave the global random state alone. Tied weights stay tied.
    """
    config = transformers_config(model)
    _, model_class = FAMILIES[model.architecture]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for what the class itself draws: decay rates of linear attention, say
        with _told_as_config_error(model_class):
            policy = model_class(config)
    redraw_matrices(policy, seed=seed, std=model.init_std)
    policy.to(dtype)  # type: ignore[call-arg, arg-type]  # the library wraps `to` without its signature
    return policy.eval()


@torch.no_grad()
def redraw_matrices(module: torch.nn.Module, *, seed: int, std: float) -> None:
    """Draw every matrix from N(0, std²). Vectors (norms, biases, decay rates) keep what their class gave them."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0.0, std, generator=generator)


@contextmanager
def _told_as_config_error(target: type) -> Iterator[None]:
    """What the library raises for values that it can't use, in one sentence."""
    try:
        yield
    except (StrictDataclassError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"model.config does not make a {target.__name__}: {reason}") from None
