"""Images that a prompt can hold: plain pixels, small enough to travel with a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Image:
    """`height × width × 3` bytes of RGB, row by row."""

    height: int
    width: int
    rgb: bytes
