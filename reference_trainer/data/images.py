"""Images that a prompt can hold: plain pixels, small enough to travel with a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Image:
    """`height × width × 3` bytes of RGB, row by row. Raises ValueError for another number of bytes."""

    height: int
    width: int
    rgb: bytes

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1 or len(self.rgb) != 3 * self.height * self.width:
            raise ValueError(
                f"an image of {self.height} × {self.width} pixels came with {len(self.rgb)} bytes; "
                "it takes 3 a pixel and at least one pixel"
            )

    @property
    def array(self) -> np.ndarray:
        """`(height, width, 3)` uint8, read-only."""
        return np.frombuffer(self.rgb, dtype=np.uint8).reshape(self.height, self.width, 3)


def as_image(item: Any) -> Image:
    """An image from the record itself, its fields as a mapping, or an array `(height, width, 3)` of uint8.

    Nothing is opened: a path or an encoded file raises TypeError, as does any other type.
    """
    if isinstance(item, Image):
        return item
    if isinstance(item, Mapping):
        if set(item) != {"height", "width", "rgb"}:
            raise TypeError(f"an image as a mapping has the keys height, width and rgb, not {sorted(map(str, item))}")
        return Image(height=item["height"], width=item["width"], rgb=bytes(item["rgb"]))
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3:
        return Image(height=item.shape[0], width=item.shape[1], rgb=item.tobytes())
    told = f"an array {item.shape} of {item.dtype}" if isinstance(item, np.ndarray) else f"a {type(item).__name__}"
    raise TypeError(f"{told} is no image; give an Image, its fields, or an array (height, width, 3) of uint8")


def as_plain(image: Image) -> dict[str, Any]:
    """The fields, to travel; `as_image` takes them."""
    return {"height": image.height, "width": image.width, "rgb": image.rgb}
