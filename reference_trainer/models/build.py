"""A policy from a configuration alone: the family's real transformers class with seeded random weights."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.models.capabilities import expert_count
from reference_trainer.models.families import FAMILIES, told_as_config_error, transformers_config


def build_policy(model: ModelConfig, *, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    """The causal language model, in evaluation mode (the trainer uses no dropout), on the CPU.

    Equal arguments give bit-equal weights and leave the global random state alone. Tied weights stay tied.
    """
    config = transformers_config(model)
    model_class = FAMILIES[model.architecture].model_class
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for what the class itself draws: decay rates of linear attention, say
        with told_as_config_error(model_class):
            policy = model_class(config)
    redraw_matrices(policy, seed=seed, std=model.init_std)
    choose_experts(policy, dtype)
    policy.to(dtype)  # type: ignore[call-arg, arg-type]  # the library wraps `to` without its signature
    return policy.eval()


def choose_experts(policy: PreTrainedModel, dtype: torch.dtype) -> None:
    """Experts in float64 go one after another: the grouped product that the library takes unasked has no float64.

    In float32 and bfloat16 it stays: the loop over experts would make a gradient of all experts for each of them.
    """
    if dtype == torch.float64 and expert_count(policy) > 0:
        policy.set_experts_implementation("eager")


@torch.no_grad()
def redraw_matrices(module: torch.nn.Module, *, seed: int, std: float) -> None:
    """Draw every matrix from N(0, std²). Vectors (norms, biases, decay rates) keep what their class gave them."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0.0, std, generator=generator)
