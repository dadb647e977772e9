"""A short supervised training on the right answers, so that reinforcement has something to improve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reference_trainer.algorithms.mtp import mtp_loss
from reference_trainer.config import TrainerConfig
from reference_trainer.data.layout import Row, RowBatch, lay_out
from reference_trainer.data.prompts import Task, TaskSource
from reference_trainer.data.tokenizer import encode
from reference_trainer.models.drafter import drafter_log_probs, drafter_of
from reference_trainer.models.lora import is_adapter
from reference_trainer.models.outputs import last_hidden_states
from reference_trainer.trainers.forward import response_log_probs
from reference_trainer.trainers.parts import trained_parts


def train_on_answers(
    policy: PreTrainedModel,
    tasks: TaskSource,
    tokenizer: PreTrainedTokenizerFast,
    *,
    config: TrainerConfig,
    first_task: int,
    steps: int,
) -> float:
    """Minimise the mean negative log-prob of answer and end token; return the last batch's (0.0 for no steps).

    Draws its tasks from `first_task` on. A drafter learns beside the policy, from hidden states that it does not move.
    With adapters, what is trained is the base that they will be trained on.
    """
    settings = config.warm_start
    last = 0.0
    with _base_trainable(policy) as parts:
        optimizers = [
            torch.optim.AdamW(parameters, lr=settings.lr, betas=config.optimizer.betas, weight_decay=0.0)
            for parameters in parts
        ]
        for step in range(steps):
            drawn = tasks.tasks(first_task + step * settings.batch, settings.batch)
            rows = [answered(task, tokenizer) for task in drawn]
            batch = lay_out(rows, pad_id=tokenizer.pad_token_id, device=policy.device)
            hidden = last_hidden_states(policy.model, batch)
            log_probs, _ = response_log_probs(policy, batch, temperature=1.0, hidden=hidden)
            loss = -log_probs.sum() / batch.present.sum()
            drafting = _draft_loss(policy, hidden, batch) if drafter_of(policy) is not None else 0.0
            policy.zero_grad(set_to_none=True)
            (loss + drafting).backward()
            for parameters, optimizer in zip(parts, optimizers, strict=True):
                torch.nn.utils.clip_grad_norm_(parameters, config.optimizer.max_grad_norm)
                optimizer.step()
            last = loss.item()
        policy.zero_grad(set_to_none=True)
    return last


def _draft_loss(policy: PreTrainedModel, hidden: torch.Tensor, batch: RowBatch) -> torch.Tensor:
    log_probs, predictable = drafter_log_probs(policy, hidden, batch)
    return mtp_loss(log_probs, predictable).sum() / predictable.sum().clamp(min=1)


@contextmanager
def _base_trainable(policy: PreTrainedModel) -> Iterator[list[list[nn.Parameter]]]:
    """Parameters of policy and drafter, each a list, adapters left out; frozen ones are trainable inside the block.

    A fresh adapter's product is 0, so a base trained beside it is what it would be without.
    """
    base = [(name, parameter) for name, parameter in policy.named_parameters() if not is_adapter(name)]
    frozen = [parameter for _, parameter in base if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        named = {id(parameter) for _, parameter in base}
        parts = trained_parts(policy, None).values()
        yield [[parameter for _, parameter in part if id(parameter) in named] for part in parts]
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def answered(task: Task, tokenizer: PreTrainedTokenizerFast) -> Row:
    """The prompt with its right answer and the end token."""
    return Row(task.prompt, (*encode(tokenizer, task.answer), tokenizer.eos_token_id), task.images)
