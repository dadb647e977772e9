"""A policy: the family's real transformers class, with seeded random weights or a user's."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.models.capabilities import expert_count
from reference_trainer.models.checkpoint import load_drafter, load_policy
from reference_trainer.models.configurations import told_as_config_error, transformers_config
from reference_trainer.models.drafter import attach_drafter
from reference_trainer.models.families import FAMILIES
from reference_trainer.models.precision import cast_weights

__all__ = ["build_policy", "redraw_matrices", "transformers_config"]


def build_policy(model: ModelConfig, *, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    """The language model with its drafter and without adapters, in evaluation mode (no dropout), on the CPU.

    `policy.model` is its backbone and `policy.get_output_embeddings()` its head. Equal arguments give bit-equal
    weights and leave the global random state alone. Tied weights stay tied. A checkpoint has no use for the seed.
    """
    if model.checkpoint is not None:
        policy = load_policy(model, dtype=dtype)
    else:
        config = transformers_config(model)
        model_class = FAMILIES[model.architecture].model_class
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # for what the class itself draws: decay rates of linear attention, say
            with told_as_config_error(model_class):
                policy = model_class(config)
        redraw_matrices(policy, seed=seed, std=model.init_std)
        cast_weights(policy, dtype)
    _choose_experts(policy, dtype)
    if model.drafter is not None:
        attach_drafter(policy, model.drafter, seed=seed, dtype=dtype, std=model.init_std)
        if model.checkpoint is not None:
            load_drafter(policy, model.checkpoint)
    return policy.eval()


@torch.no_grad()
def redraw_matrices(module: nn.Module, *, seed: int, std: float) -> None:
    """Draw every matrix from N(0, std²). Vectors (norms, biases, decay rates) keep what their class gave them."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0.0, std, generator=generator)


def _choose_experts(policy: PreTrainedModel, dtype: torch.dtype) -> None:
    """Experts in float64 go one after another: the grouped product that the library takes unasked has no float64.

    In float32 and bfloat16 it stays: the loop over experts would make a gradient of all experts for each of them.
    """
    if dtype == torch.float64 and expert_count(policy) > 0:
        policy.set_experts_implementation("eager")
