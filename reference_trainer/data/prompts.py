"""Prompts and answers, from reasoning-gym or with images of our own: equal seeds give equal tasks in equal order.

reasoning-gym draws item i of a dataset with seed s from `Random(s + i)`, so neighbouring seeds share items. Training
and held-out tasks therefore take their seeds from disjoint halves of the 32-bit range. What is disjoint are the
draws: a small task space repeats itself, so a held-out expression may have been seen in training.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from reference_trainer.config import ConfigError, TaskConfig
from reference_trainer.config_errors import nearest_name
from reference_trainer.data.image_tasks import IMAGE_DATASETS
from reference_trainer.data.image_tokens import ImageTokens
from reference_trainer.data.images import Image
from reference_trainer.data.segments import encode_segments

Split = Literal["train", "held_out"]

_HALF = 2**31  # numpy-based generators take 32-bit seeds
_MOST_TASKS = 2**30  # of one source, so that first seed + item stays within its half


@dataclass(frozen=True, kw_only=True)
class Task:
    """One prompt as ids, and what its scorer needs."""

    prompt: tuple[int, ...]
    answer: str
    entry: dict[str, Any]
    images: tuple[Image, ...] = ()


class TaskSource:
    """`size` tasks of one split by index; after the last one they start again.

    Raises ConfigError for a dataset that there is not or settings that it does not take, and for images that the
    model has no use for. `image_tokens` is what stands for an image in the model's rows, None when it takes none.
    """

    def __init__(
        self,
        config: TaskConfig,
        tokenizer: PreTrainedTokenizerFast,
        *,
        seed: int,
        split: Split,
        size: int,
        image_tokens: ImageTokens | None = None,
    ) -> None:
        if size > _MOST_TASKS:
            raise ConfigError(f"the run needs {size} tasks; at most {_MOST_TASKS} have distinct seeds, so lower steps")
        offset = _HALF if split == "held_out" else 0
        first = random.Random(f"{seed}/{split}").randrange(_HALF - _MOST_TASKS) + offset
        self.dataset = _create_dataset(config, seed=first, size=size)
        self._size = size
        self._config = config
        self._tokenizer = tokenizer
        self._image_tokens = image_tokens
        if config.dataset in IMAGE_DATASETS:
            _require_fitting_images(self.dataset, image_tokens, config.dataset)

    def task(self, index: int) -> Task:
        """Task number `index`, always the same."""
        entry = self.dataset[index % self._size]
        segments = (*entry.get("images", ()), self._text(entry))
        prompt, images = encode_segments(self._tokenizer, segments, self._image_tokens, chat=self._config.chat_template)
        return Task(prompt=prompt, answer=entry["answer"], entry=entry, images=images)

    def tasks(self, start: int, count: int) -> list[Task]:
        """Tasks `start` to `start + count - 1`."""
        return [self.task(index) for index in range(start, start + count)]

    def _text(self, entry: dict[str, Any]) -> str:
        if self._config.prompt == "question":
            return entry["question"]
        try:
            return entry["metadata"]["expression"]
        except KeyError:
            raise ConfigError(
                f'task.prompt is "expression", which dataset "{self._config.dataset}" does not give; use "question"'
            ) from None


def _require_fitting_images(dataset: Any, tokens: ImageTokens | None, name: str) -> None:
    """All sizes before the run, instead of one in the middle of it."""
    if tokens is None:
        raise ConfigError(f'task.dataset "{name}" has images and the model takes none; choose one with a vision tower')
    for size in dataset.settings.sizes:
        try:
            tokens.grid(Image(height=size, width=size, rgb=bytes(3 * size * size)))
        except ValueError as error:
            raise ConfigError(f"task.settings.sizes does not suit the model: {error}") from None


def _create_dataset(config: TaskConfig, *, seed: int, size: int) -> Any:
    if config.dataset in IMAGE_DATASETS:
        given = config.settings if "settings" in config.model_fields_set else {}  # unsaid, they are another dataset's
        return IMAGE_DATASETS[config.dataset](given, seed=seed, size=size)
    import reasoning_gym  # here, because it takes seconds and only a run with prompts needs it
    from reasoning_gym.factory import DATASETS

    if config.dataset not in DATASETS:
        raise ConfigError(
            f'task.dataset is "{config.dataset}"; {nearest_name(config.dataset, sorted((*DATASETS, *IMAGE_DATASETS)))}'
        )
    try:
        return reasoning_gym.create_dataset(config.dataset, seed=seed, size=size, **config.settings)
    except (TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f'task.settings {config.settings} do not suit dataset "{config.dataset}": {reason}') from None
