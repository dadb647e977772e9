"""What the trainer takes from a forward pass: the last hidden states, and the head that makes logits of them.

Logits themselves are never asked of a model: which of them are needed, and how they are held, is the log-prob
variant's business (`algorithms/logprobs.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from reference_trainer.data.layout import RowBatch
from reference_trainer.models.inputs import model_inputs


@dataclass(frozen=True, kw_only=True)
class Head:
    """logits = softcap · tanh(hidden @ weightᵀ / softcap), or plainly hidden @ weightᵀ."""

    weight: torch.Tensor
    """`(V, H)`, live."""
    softcap: float | None = None
    """Gemma's `final_logit_softcapping`."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`(…, H)` to `(…, V)`."""
        plain = nn.functional.linear(hidden, self.weight)
        return plain if self.softcap is None else self.softcap * torch.tanh(plain / self.softcap)


def head_of(policy: PreTrainedModel) -> Head:
    """The language-model head."""
    text = policy.config.get_text_config()
    return Head(weight=policy.get_output_embeddings().weight, softcap=getattr(text, "final_logit_softcapping", None))


def last_hidden_states(backbone: nn.Module, batch: RowBatch) -> torch.Tensor:
    """Hidden states of a backbone (a policy's `model`) after its last norm, `(B, L, H)`."""
    return backbone(**model_inputs(backbone, batch), use_cache=False).last_hidden_state


def at_predictors(hidden: torch.Tensor, batch: RowBatch) -> torch.Tensor:
    """The hidden states `(B, L, H)` that predict a response token, those alone: `(N, H)` with N tokens present.

    Row after row, in the order of `batch.labels[batch.present]`.
    """
    rows = torch.arange(len(hidden), device=hidden.device)[:, None].expand_as(batch.predictor)
    return hidden[rows[batch.present], batch.predictor[batch.present]]
