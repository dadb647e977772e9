from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.config import ConfigError, TaskConfig
from reference_trainer.data.image_tasks import ImageCount, render
from reference_trainer.data.image_tokens import ImageTokens
from reference_trainer.data.images import Image
from reference_trainer.data.prompts import Split, TaskSource
from reference_trainer.data.tokenizer import build_tokenizer, decode
from reference_trainer.rewards.scorers import score_response

TOKENIZER = build_tokenizer()
TOKENS = ImageTokens(placeholder_id=262, start_id=263, end_id=264, side=8)


def source(seed: int = 0, split: Split = "train", tokens: ImageTokens | None = TOKENS, **task: Any) -> TaskSource:
    config = TaskConfig(**{"dataset": "image_count", **task})
    return TaskSource(config, TOKENIZER, seed=seed, split=split, size=40, image_tokens=tokens)


def pieces(image: Image) -> int:
    """Connected bright regions, found by flooding: what a viewer would count."""
    left = {(int(y), int(x)) for y, x in np.argwhere(image.array.max(-1) >= 128)}
    count = 0
    while left:
        count += 1
        edge = [left.pop()]
        while edge:
            y, x = edge.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            edge += near
    return count


@given(seed=st.integers(0, 2**31), squares=st.integers(0, 8))
def test_an_image_shows_as_many_squares_as_were_asked_for(seed: int, squares: int) -> None:
    drawn = render(16, 32, squares, random.Random(seed))
    assert (drawn.height, drawn.width) == (16, 32)
    assert pieces(drawn) == squares
    assert render(16, 32, squares, random.Random(seed)) == drawn


def test_the_answer_is_the_number_of_squares_of_all_images() -> None:
    settings = {"images": 3, "sizes": [16, 24], "min_count": 0, "max_count": 4}
    tasks = source(settings=settings).tasks(0, 40)
    for task in tasks:
        assert task.answer == str(sum(pieces(image) for image in task.images))
        assert len(task.images) == 3
        assert task.prompt.count(262) == sum(image.height * image.width // 64 for image in task.images)
    assert len({task.answer for task in tasks}) > 5
    assert {(image.height, image.width) for task in tasks for image in task.images} == {
        (height, width) for height in (16, 24) for width in (16, 24)
    }


def test_tasks_are_a_function_of_the_seed_and_splits_have_disjoint_seeds() -> None:
    assert source(seed=3).tasks(0, 20) == source(seed=3).tasks(0, 20)
    assert source(seed=3).tasks(0, 20) != source(seed=4).tasks(0, 20)
    assert source(seed=3).tasks(5, 2) == source(seed=3).tasks(0, 20)[5:7]
    for seed in range(50):
        train, held_out = source(seed), source(seed, "held_out")
        assert train.dataset.seed + 2**30 <= 2**31 <= held_out.dataset.seed


def test_unsaid_settings_are_the_dataset_s_own() -> None:
    assert source().dataset.settings.max_count == 4
    assert source(settings={"max_count": 2}).dataset.settings.max_count == 2


def test_the_prompt_is_the_images_with_or_without_the_question() -> None:
    asked = source(chat_template=False).task(0)
    shown = (263, *[262] * 4, 264)
    assert asked.prompt[:6] == shown
    assert decode(TOKENIZER, asked.prompt[6:]) == asked.entry["question"] == "How many squares are there?"
    bare = source(chat_template=False, prompt="expression").task(0)
    assert bare.prompt == shown
    assert bare.images == asked.images
    chat = decode(TOKENIZER, [token for token in source().task(0).prompt if token not in (262, 263, 264)])
    assert chat == "<|bos|><|user|>How many squares are there?<|end|><|assistant|>"


def test_only_the_number_itself_scores() -> None:
    tasks = source()
    task = tasks.task(0)
    right = int(task.answer)
    for text, score in ((f"{right}", 1), (f" {right} ", 1), (f"{right + 1}", 0), (f"{right}{right}", 0), ("", 0)):
        assert score_response(tasks, task, text) == score
    assert ImageCount.score_answer(None, task.entry) == 0.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_cout": 3}, 'unknown key "task.settings.max_cout" (value 3); did you mean "max_count"?'),
        ({"min_terms": 2}, 'unknown key "task.settings.min_terms"'),
        ({"max_count": 0}, '"task.settings.max_count" has 0; it should be a whole number from 1 on'),
        ({"max_count": True}, '"task.settings.max_count" has True'),
        ({"min_count": -1}, '"task.settings.min_count" has -1'),
        ({"min_count": 3, "max_count": 2}, '"task.settings.min_count" is 3, more than max_count 2'),
        ({"sizes": 16}, '"task.settings.sizes" is 16; it should be a list'),
        ({"sizes": []}, '"task.settings.sizes" is []; it should be a list'),
        ({"sizes": [16, 20]}, '"task.settings.sizes" has 20; it should be a multiple of 8'),
        ({"sizes": [32, 16], "max_count": 5}, "an image of 16 × 16 pixels has room for 4 squares"),
        ({"images": 0}, '"task.settings.images" has 0'),
    ],
)
def test_settings_that_make_no_task_are_told_in_one_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source(settings=settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_that_does_not_suit_the_model_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match='"image_count" has images and the model takes none; choose one with a vis'):
        source(tokens=None)
    wide = ImageTokens(placeholder_id=262, start_id=None, end_id=None, side=16)
    with pytest.raises(
        ConfigError, match=r"task\.settings\.sizes does not suit the model: .* 24 × 24 .* multiples of 16"
    ):
        source(tokens=wide, settings={"sizes": [16, 24]})
    with pytest.raises(ConfigError, match=r'task\.dataset is "image_cout"; did you mean "image_count"'):
        source(dataset="image_cout")


def test_an_index_behind_the_last_item_is_none_of_the_dataset() -> None:
    dataset = ImageCount({}, seed=0, size=2)
    assert len(list(dataset)) == len(dataset) == 2  # type: ignore[call-overload]
    with pytest.raises(IndexError):
        dataset[2]
