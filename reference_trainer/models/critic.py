"""The critic: a value head on a backbone of its own."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.data.layout import RowBatch
from reference_trainer.models.build import build_policy
from reference_trainer.models.outputs import last_hidden_states


class Critic(nn.Module):
    """Value of each position, from the hidden state after its token."""

    def __init__(self, backbone: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.value_head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)  # the first values are 0: no random baseline
        nn.init.zeros_(self.value_head.bias)

    def forward(self, batch: RowBatch) -> torch.Tensor:
        """Values `(B, L)`."""
        return self.value_head(last_hidden_states(self.backbone, batch)).squeeze(-1)

    @torch.no_grad()
    def start_from(self, policy: PreTrainedModel) -> None:
        """Take the policy's backbone: a critic that has to learn to read first would mislead for long."""
        self.backbone.load_state_dict(policy.model.state_dict())


def build_critic(model: ModelConfig, *, seed: int, dtype: torch.dtype) -> Critic:
    """A critic of the policy's architecture, in evaluation mode."""
    policy = build_policy(model, seed=seed, dtype=dtype)
    return Critic(policy.model, policy.config.get_text_config().hidden_size).to(dtype).eval()
