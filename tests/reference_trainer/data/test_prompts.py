from __future__ import annotations

from typing import Any

import pytest

from reference_trainer.config import ConfigError, TaskConfig
from reference_trainer.data.prompts import Split, TaskSource
from reference_trainer.data.tokenizer import ASSISTANT_ID, BOS_ID, build_tokenizer, decode

TOKENIZER = build_tokenizer()


def source(seed: int = 0, split: Split = "train", size: int = 50, **task: Any) -> TaskSource:
    return TaskSource(TaskConfig(**task), TOKENIZER, seed=seed, split=split, size=size)


def test_tasks_are_a_function_of_the_seed() -> None:
    assert source(seed=3).tasks(0, 20) == source(seed=3).tasks(0, 20)
    assert source(seed=3).tasks(0, 20) != source(seed=4).tasks(0, 20)
    assert source(seed=3).tasks(5, 2) == source(seed=3).tasks(0, 20)[5:7]


def test_the_seeds_of_training_and_held_out_draws_are_disjoint() -> None:
    for seed in range(200):
        train, held_out = source(seed), source(seed, "held_out")
        assert train.dataset.seed >= 0
        assert train.dataset.seed + 2**30 <= 2**31 <= held_out.dataset.seed
        assert held_out.dataset.seed + 2**30 <= 2**32


def test_after_the_last_task_they_start_again() -> None:
    tasks = source(size=3)
    assert tasks.task(4) == tasks.task(1)


def test_the_prompt_is_the_question_or_the_bare_expression_with_or_without_a_chat() -> None:
    entry = source().task(0).entry
    expression = entry["metadata"]["expression"]
    assert entry["question"] in decode(TOKENIZER, source().task(0).prompt)
    assert decode(TOKENIZER, source(prompt="expression", chat_template=False).task(0).prompt) == expression
    chat = source(prompt="expression").task(0).prompt
    assert (chat[0], chat[-1]) == (BOS_ID, ASSISTANT_ID)
    assert expression in decode(TOKENIZER, chat)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"dataset": "chain_summ"}, 'task.dataset is "chain_summ"; did you mean "chain_sum"?'),
        ({"settings": {"min_therms": 2}}, "min_therms"),
        ({"settings": {"min_terms": 0}}, "min_terms must be positive"),
        ({"settings": {"min_terms": "two"}}, "do not suit dataset"),
        ({"dataset": "leg_counting", "settings": {}, "prompt": "expression"}, 'use "question"'),
    ],
)
def test_a_task_that_does_not_exist_is_told_in_one_sentence(task: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source(**task).task(0)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_tasks_than_distinct_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower steps"):
        source(size=2**31)
