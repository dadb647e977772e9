"""What stands for an image in a row of tokens: one placeholder for each feature that the model makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reference_trainer.data.images import Image


@dataclass(frozen=True, kw_only=True)
class ImageTokens:
    """A model's way with images; `models/media.py` reads it from the model's configuration."""

    placeholder_id: int
    start_id: int | None
    """Before the placeholders of an image; None for an architecture without one."""
    end_id: int | None
    """After them."""
    side: int
    """Pixels, down and across, that become one feature: a patch times the patches that are merged."""
    most_features: int | None = None
    """Features of one side that the model has positions for; None where any size has some."""

    def grid(self, image: Image) -> tuple[int, int]:
        """Features down and across. Raises ValueError for an image that doesn't divide into them."""
        down, across = image.height // self.side, image.width // self.side
        if (down * self.side, across * self.side) != (image.height, image.width):
            raise ValueError(
                f"an image of {image.height} × {image.width} pixels does not divide into the {self.side} × {self.side} "
                f"that the model makes one feature of; choose sides that are multiples of {self.side}"
            )
        if self.most_features is not None and max(down, across) > self.most_features:
            raise ValueError(
                f"an image of {image.height} × {image.width} pixels is larger than the model has positions for; keep "
                f"its sides to {self.most_features * self.side} pixels"
            )
        return down, across

    def features(self, image: Image) -> int:
        """Features, and so placeholders, of an image."""
        down, across = self.grid(image)
        return down * across

    def expand(self, image: Image) -> tuple[int, ...]:
        """The ids that stand for an image, start and end included."""
        around = [() if mark is None else (mark,) for mark in (self.start_id, self.end_id)]
        return (*around[0], *(self.placeholder_id,) * self.features(image), *around[1])

    def starts(self, ids: Sequence[int], images: Sequence[Image], *, row: str) -> list[int]:
        """Where each image's placeholders start in a row of ids.

        Raises ValueError, naming `row` and both counts, when placeholders and features are not equally many, and when
        the placeholders of one image do not stand together.
        """
        places = [place for place, token in enumerate(ids) if token == self.placeholder_id]
        features = [self.features(image) for image in images]
        if len(places) != sum(features):
            raise ValueError(
                f"{row} has {len(places)} image placeholders, but its {len(images)} images have {sum(features)} "
                "features; give it one placeholder for each"
            )
        found, at = [], 0
        for number, count in enumerate(features):
            first, last = places[at], places[at + count - 1]
            if last - first != count - 1:
                raise ValueError(
                    f"{row} has other tokens between the placeholders of its image {number}; move them out"
                )
            found.append(first)
            at += count
        return found
