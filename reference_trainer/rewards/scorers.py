"""Scores of responses, by the task's own scorer."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from reference_trainer.data.prompts import Task, TaskSource
from reference_trainer.data.tokenizer import decode


def response_text(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    """The answer that a response gives: its text up to the end token. Other special tokens stay visible in it."""
    answer = list(tokens[:-1] if tokens and tokens[-1] == tokenizer.eos_token_id else tokens)
    return decode(tokenizer, answer).strip()


def score_response(source: TaskSource, task: Task, text: str) -> float:
    """Score in [0, 1] of an answer, by the dataset's own scorer."""
    return float(source.dataset.score_answer(text, task.entry))
