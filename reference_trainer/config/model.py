"""The policy's settings: its architecture, and what can be attached to it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from reference_trainer.config.fields import Count, NonNegative, Positive, Section

Architecture = Literal["qwen3", "qwen3.5", "qwen3.5-moe", "qwen3.5-vl", "gemma4", "gemma4-vl", "llama"]


class LoraConfig(Section):
    """Low-rank adapters on the policy (peft); the base is frozen, and the reference policy is the base."""

    rank: Count
    """Rank of each adapter."""
    alpha: Positive = 16.0
    """The adapter's product is scaled by alpha / rank."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the linear layers that get one, or all of them but the head."""


class DrafterConfig(Section):
    """A small model that proposes tokens for the policy to check, trained beside it."""

    kind: Literal["mtp", "assistant"]
    """mtp: blocks of the policy's own kind over its last hidden states; assistant: Gemma4's drafter."""
    layers: Count = 1
    """Decoder layers of the drafter."""
    loss_coefficient: NonNegative = 0.1
    """Weight of its loss; 0 leaves it as it was drawn."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the assistant's text configuration; what is left out is the policy's."""


class ModelConfig(Section):
    """Which transformers class is built, from a configuration alone or from a user's weights."""

    architecture: Architecture
    """Family of the policy; `reference_trainer/models/families.py` says which classes it means."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the family's transformers configuration; sizes have no default here."""
    checkpoint: str | None = None
    """Folder with the user's own weights (size `local`); its config.json decides the sizes. Null: random weights."""
    init_std: Positive = 0.05
    """Standard deviation of the random matrices; the library's own 0.02 leaves a tiny model near uniform."""
    lora: LoraConfig | None = None
    """Adapters; null trains all parameters."""
    drafter: DrafterConfig | None = None
    """Drafter; null for none, whatever the architecture or a checkpoint could have."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if not self.config and self.checkpoint is None:
            raise ValueError("model.config is empty and there is no model.checkpoint; give one of them")
        if self.config and self.checkpoint is not None:
            raise ValueError("model.config and model.checkpoint both say the sizes; the checkpoint has its own config")
        return self
