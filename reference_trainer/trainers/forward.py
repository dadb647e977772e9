"""Forward passes of policy and critic over laid-out rows, with answers aligned to the response `(B, T)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from reference_trainer.algorithms.logprobs import log_probs_from_hidden
from reference_trainer.config import LogProbVariant
from reference_trainer.data.layout import Row, RowBatch, lay_out
from reference_trainer.models.critic import Critic
from reference_trainer.models.outputs import at_predictors, head_of, last_hidden_states


def response_log_probs(
    policy: PreTrainedModel,
    batch: RowBatch,
    *,
    temperature: float,
    variant: LogProbVariant = "dense",
    chunk: int = 512,
    hidden: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each response token and entropy at it, both `(B, T)` and 0 where no token is.

    `hidden` `(B, L, H)` are the policy's last hidden states where they are there already.
    """
    if not batch.present.any():
        empty = torch.zeros(batch.present.shape, device=batch.present.device)
        return empty, empty
    if hidden is None:
        hidden = last_hidden_states(policy.model, batch)
    head = head_of(policy)
    log_probs, entropies = log_probs_from_hidden(
        at_predictors(hidden, batch),
        head.weight,
        batch.labels[batch.present],
        temperature=temperature,
        softcap=head.softcap,
        variant=variant,
        chunk=chunk,
    )
    return spread(log_probs, batch), spread(entropies, batch)


def spread(values: torch.Tensor, batch: RowBatch) -> torch.Tensor:
    """Values of the tokens present `(N,)`, row after row, at their places in `(B, T)`; 0 elsewhere."""
    return values.new_zeros(batch.present.shape).masked_scatter(batch.present, values)


def response_values(critic: Critic, batch: RowBatch) -> torch.Tensor:
    """The critic's value before each response token, `(B, T)`, 0 where no token is."""
    if not batch.present.any():
        return torch.zeros(batch.present.shape, device=batch.present.device)
    values = critic(batch)  # (B, L)
    return values.gather(1, batch.predictor).masked_fill(~batch.present, 0.0)


@torch.no_grad()
def in_chunks(
    compute: Callable[[RowBatch], torch.Tensor],
    rows: Sequence[Row],
    *,
    rows_per_batch: int,
    pad_id: int,
    device: torch.device,
) -> torch.Tensor:
    """`compute` over all rows, a few at a time and without a graph; `(B, T)` with T the longest response of all."""
    longest = max((len(row.response) for row in rows), default=0)
    parts = [
        compute(lay_out(rows[start : start + rows_per_batch], pad_id=pad_id, response_length=longest, device=device))
        for start in range(0, len(rows), rows_per_batch)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, longest, device=device)
