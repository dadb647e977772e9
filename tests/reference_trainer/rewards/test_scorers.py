from __future__ import annotations

import pytest

from reference_trainer.config import TaskConfig
from reference_trainer.data.prompts import TaskSource
from reference_trainer.data.tokenizer import EOS_ID, PAD_ID, build_tokenizer, encode
from reference_trainer.rewards.scorers import response_text, score_response

TOKENIZER = build_tokenizer()


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ((), ""),
        ((EOS_ID,), ""),
        ((*b"12", EOS_ID), "12"),
        ((*b"12",), "12"),
        ((*b" 12\n", EOS_ID), "12"),
        ((*b"1", PAD_ID, *b"2", EOS_ID), "1<|pad|>2"),  # a special token is no way to hide
        ((200,), "\ufffd"),
    ],
)
def test_the_answer_is_the_text_before_the_end_token(tokens: tuple[int, ...], text: str) -> None:
    assert response_text(TOKENIZER, tokens) == text


def test_the_task_scores_its_own_answer_with_1() -> None:
    source = TaskSource(TaskConfig(), TOKENIZER, seed=0, split="train", size=20)
    for task in source.tasks(0, 20):
        assert score_response(source, task, response_text(TOKENIZER, (*encode(TOKENIZER, task.answer), EOS_ID))) == 1.0
        assert score_response(source, task, "") == 0.0
        assert score_response(source, task, "seven") == 0.0
