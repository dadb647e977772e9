"""Low-rank adapters on a policy's linear layers (Hu et al. 2021, arXiv:2106.09685), by peft.

y = W x + scale · B A x with scale = alpha / rank, A `(r, in)` and B `(out, r)`. B starts at 0, so an adapted policy
starts as its base. The policy keeps its transformers class; only adapted layers are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import PreTrainedModel

from reference_trainer.config import ConfigError, LoraConfig
from reference_trainer.config_errors import nearest_name

DRAFTERS = ("mtp", "assistant")
"""Attributes under which a policy holds a drafter: trained beside it and never adapted."""

# Layers that decide where a token goes: an adapter there would move the choice of experts, not what they compute.
_ROUTING = frozenset({"router", "shared_expert_gate"})


def add_adapters(policy: PreTrainedModel, lora: LoraConfig, *, seed: int) -> None:
    """Put adapters into the policy, in place, and freeze the rest but a drafter.

    Candidates are the linear layers of the language model: no head, no embedding, no vision tower, no routing, and no
    expert (experts are one parameter of three dimensions). A is drawn from the seed alone. Raises ConfigError for a
    target that no candidate is called.
    """
    chosen = _targets(policy, lora)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(
            PeftLoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=chosen),  # type: ignore[arg-type]
            policy,
        )
    adapted = {name for name, _ in adapted_layers(policy)}
    if adapted != set(chosen):  # peft matches a name as the end of a path as well
        raise ConfigError(f"model.lora reached {sorted(adapted ^ set(chosen))} by mistake; name other targets")
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(is_adapter(name) or name.split(".")[0] in DRAFTERS)
    policy.eval()


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Path and module of each layer that has an adapter."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


@torch.no_grad()
def merged_weight(layer: LoraLayer) -> torch.Tensor:
    """W + scale · B A as a new tensor of W's dtype, `(out, in)`. Computed in float32 at least, rounded once."""
    weight: torch.Tensor = layer.get_base_layer().weight  # type: ignore[assignment]
    wide = torch.promote_types(weight.dtype, torch.float32)
    merged = weight.to(wide, copy=True)
    for adapter in layer.active_adapters:
        down: torch.Tensor = layer.lora_A[adapter].weight  # type: ignore[assignment]
        up: torch.Tensor = layer.lora_B[adapter].weight  # type: ignore[assignment]
        merged += layer.scaling[adapter] * (up.to(wide) @ down.to(wide))
    return merged.to(weight.dtype)


@contextmanager
def without_adapters(policy: PreTrainedModel) -> Iterator[None]:
    """Inside, the policy is its base: the reference policy of an adapted one, which needs no copy of the weights."""
    layers = [layer for _, layer in adapted_layers(policy)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def _targets(policy: PreTrainedModel, lora: LoraConfig) -> list[str]:
    paths = list(_candidates(policy))
    if lora.targets == "all-linear":
        return paths
    known = sorted({path.rpartition(".")[2] for path in paths})
    for target in lora.targets:
        if target not in known:
            raise ConfigError(f'"model.lora.targets" names "{target}"; {nearest_name(target, known)}')
    if not lora.targets:
        raise ConfigError('"model.lora.targets" is empty; name linear layers, or "all-linear", or leave lora out')
    return [path for path in paths if path.rpartition(".")[2] in lora.targets]


def _candidates(policy: PreTrainedModel) -> Iterator[str]:
    inside = "model.language_model" if hasattr(policy.model, "language_model") else "model"
    for name, module in policy.get_submodule(inside).named_modules(prefix=inside):
        if isinstance(module, nn.Linear) and not _ROUTING & set(name.split(".")):
            yield name
