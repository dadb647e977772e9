"""The critic: a value head on a backbone of its own."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.data.layout import RowBatch
from reference_trainer.models.build import build_policy
from reference_trainer.models.lora import add_adapters
from reference_trainer.models.outputs import last_hidden_states
from reference_trainer.weights.export import export_tensors, live_entries


class Critic(nn.Module):
    """Value of each position, from the hidden state after its token. It is given all that the policy is given."""

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
        """Take the policy's backbone: a critic that has to learn to read first would mislead for long.

        Of an adapted policy it takes the merged weights; the critic's own adapters stay at 0.
        """
        own = live_entries(self.backbone)
        for name, tensor in export_tensors(policy.model):
            own[name].copy_(tensor)


def build_critic(model: ModelConfig, *, seed: int, dtype: torch.dtype) -> Critic:
    """A critic of the policy's architecture, in evaluation mode. With lora, adapters and value head are trained."""
    policy = build_policy(model, seed=seed, dtype=dtype)
    if model.lora is not None:
        add_adapters(policy, model.lora, seed=seed)
    critic = Critic(policy.model, policy.config.get_text_config().hidden_size)
    critic.value_head.to(dtype)
    return critic.eval()
