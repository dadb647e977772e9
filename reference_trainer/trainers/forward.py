"""Forward passes of policy and critic over laid-out rows, with answers aligned to the response `(B, T)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from reference_trainer.algorithms.logprobs import entropy, token_log_probs
from reference_trainer.models.critic import Critic
from reference_trainer.trainers.layout import Row, RowBatch, lay_out


def response_logits(policy: PreTrainedModel, batch: RowBatch) -> torch.Tensor:
    """Logits that predict each response token, `(B, T, V)`; unread where no token is.

    Only the columns that predict something go through the head: most of a row is prompt.
    """
    columns = torch.unique(batch.predictor)  # sorted
    logits = policy(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
        logits_to_keep=columns,
    ).logits  # (B, len(columns), V)
    kept = torch.searchsorted(columns, batch.predictor)  # (B, T)
    return logits.gather(1, kept.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))


def response_log_probs(
    policy: PreTrainedModel, batch: RowBatch, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each response token and entropy at it, both `(B, T)` and 0 where no token is."""
    if not batch.present.any():
        empty = torch.zeros(batch.present.shape, device=batch.present.device)
        return empty, empty
    logits = response_logits(policy, batch)
    log_probs = token_log_probs(logits, batch.labels, temperature=temperature)
    return log_probs.masked_fill(~batch.present, 0.0), entropy(logits, temperature=temperature).masked_fill(
        ~batch.present, 0.0
    )


def response_values(critic: Critic, batch: RowBatch) -> torch.Tensor:
    """The critic's value before each response token, `(B, T)`, 0 where no token is."""
    if not batch.present.any():
        return torch.zeros(batch.present.shape, device=batch.present.device)
    values = critic(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
    )  # (B, L)
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
    longest = max((len(response) for _, response in rows), default=0)
    parts = [
        compute(lay_out(rows[start : start + rows_per_batch], pad_id=pad_id, response_length=longest, device=device))
        for start in range(0, len(rows), rows_per_batch)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, longest, device=device)
