"""Tasks about images that are drawn here, a function of the seed: no file is read and nothing is downloaded.

They have what the trainer asks of a reasoning-gym dataset: items by index, and a scorer. Item i of seed s is drawn from
`Random(s + i)`, so that disjoint ranges of seeds give disjoint draws.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from reference_trainer.config_errors import ConfigError, nearest_name
from reference_trainer.data.images import Image

_CELL = 8  # pixels: a square lies within a cell, so that squares never touch
_COLOURS = ((255, 80, 80), (80, 255, 80), (110, 130, 255), (255, 255, 90), (255, 255, 255))
_QUESTION = "How many squares are there?"


@dataclass(frozen=True, kw_only=True)
class ImageCountSettings:
    """Settings of `image_count`."""

    min_count: int = 1
    """Fewest squares of an image."""
    max_count: int = 4
    """Most squares of an image; each takes a cell of 8 × 8 pixels."""
    sizes: tuple[int, ...] = (16,)
    """Pixels of a side, one of them drawn for height and one for width; multiples of 8."""
    images: int = 1
    """Images of a prompt; the answer counts the squares of all."""


class ImageCount:
    """Count the squares. The answer is a number, and only that number scores."""

    def __init__(self, settings: Mapping[str, Any], *, seed: int, size: int) -> None:
        """Raises ConfigError for settings that there are not, or that make no image."""
        self.seed = seed
        self.settings = _checked(settings)
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._size:
            raise IndexError(index)
        generator = random.Random(self.seed + index)
        drawn = [_draw(self.settings, generator) for _ in range(self.settings.images)]
        counts = [count for _, count in drawn]
        return {
            "question": _QUESTION,
            "answer": str(sum(counts)),
            "images": tuple(image for image, _ in drawn),
            "metadata": {"expression": "", "counts": counts},
        }

    @staticmethod
    def score_answer(answer: str | None, entry: Mapping[str, Any]) -> float:
        """1 for the number itself, else 0."""
        return float(answer is not None and answer.strip() == entry["answer"])


IMAGE_DATASETS = {"image_count": ImageCount}


def render(height: int, width: int, squares: int, generator: random.Random) -> Image:
    """A dark image with so many bright squares, each in a cell of its own."""
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    pixels[:] = [generator.randrange(60) for _ in range(3)]
    across = width // _CELL
    for cell in generator.sample(range(height // _CELL * across), squares):
        side = generator.randint(3, 6)
        top, left = (place * _CELL + generator.randint(1, _CELL - side) for place in divmod(cell, across))
        pixels[top : top + side, left : left + side] = generator.choice(_COLOURS)
    return Image(height=height, width=width, rgb=pixels.tobytes())


def _draw(settings: ImageCountSettings, generator: random.Random) -> tuple[Image, int]:
    height, width = (generator.choice(settings.sizes) for _ in range(2))
    count = generator.randint(settings.min_count, settings.max_count)
    return render(height, width, count, generator), count


def _checked(settings: Mapping[str, Any]) -> ImageCountSettings:
    known = [field.name for field in fields(ImageCountSettings)]
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f'unknown key "task.settings.{key}" (value {value!r}); {nearest_name(key, known)}')
        least = 0 if key == "min_count" else 1
        several = key == "sizes"
        if several and not (isinstance(value, list | tuple) and value):
            raise ConfigError(f'"task.settings.sizes" is {value!r}; it should be a list of at least one number')
        for number in value if several else (value,):
            if type(number) is not int or number < least:
                raise ConfigError(f'"task.settings.{key}" has {number!r}; it should be a whole number from {least} on')
    given: dict[str, Any] = {key: tuple(value) if key == "sizes" else value for key, value in settings.items()}
    made = ImageCountSettings(**given)
    for size in made.sizes:
        if size % _CELL:
            raise ConfigError(f'"task.settings.sizes" has {size}; it should be a multiple of {_CELL}')
    cells = (min(made.sizes) // _CELL) ** 2
    if made.max_count > cells:
        raise ConfigError(
            f'"task.settings.max_count" is {made.max_count}, but an image of {min(made.sizes)} × {min(made.sizes)} '
            f"pixels has room for {cells} squares; lower it or raise sizes"
        )
    if made.min_count > made.max_count:
        raise ConfigError(
            f'"task.settings.min_count" is {made.min_count}, more than max_count {made.max_count}; lower it'
        )
    return made
