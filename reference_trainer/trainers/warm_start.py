"""A short supervised training on the right answers, so that reinforcement has something to improve."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reference_trainer.config import TrainerConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.data.prompts import Task, TaskSource
from reference_trainer.data.tokenizer import encode
from reference_trainer.trainers.forward import response_log_probs


def train_on_answers(
    policy: PreTrainedModel, tasks: TaskSource, tokenizer: PreTrainedTokenizerFast, *, config: TrainerConfig
) -> float:
    """Minimise the mean negative log-prob of answer and end token; return the last batch's (0.0 for no steps).

    Draws tasks from the front of `tasks`; the trainer goes on behind them.
    """
    settings = config.warm_start
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr, betas=config.optimizer.betas, weight_decay=0.0)
    last = 0.0
    for step in range(settings.steps):
        rows = [answered(task, tokenizer) for task in tasks.tasks(step * settings.batch, settings.batch)]
        batch = lay_out(rows, pad_id=tokenizer.pad_token_id, device=policy.device)
        log_probs, _ = response_log_probs(policy, batch, temperature=1.0)
        loss = -log_probs.sum() / batch.present.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.optimizer.max_grad_norm)
        optimizer.step()
        last = loss.item()
    return last


def answered(task: Task, tokenizer: PreTrainedTokenizerFast) -> Row:
    """The prompt with its right answer and the end token."""
    return Row(task.prompt, (*encode(tokenizer, task.answer), tokenizer.eos_token_id), task.images)
