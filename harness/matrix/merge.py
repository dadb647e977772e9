"""Settings on settings: the later word wins, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings deeply, later over earlier; anything but a mapping is replaced whole, by null too.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            before = result.get(key)
            if isinstance(value, Mapping):
                result[key] = merged(before if isinstance(before, Mapping) else {}, value)
            else:
                result[key] = value
    return result
