"""A key-value cache that takes tokens back: what was rejected must leave no trace in it.

Attention layers drop the last tokens. A recurrent state (linear attention) can't be run backwards: it is put back as it
was before the last forward pass, all of whose tokens are then to be fed again.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

_States = list[tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]]


class RewindableCache:
    """Wraps an empty cache. A forward pass stands between `remember` and `keep`."""

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self.length = 0
        """Tokens held."""
        layers: list[Any] = cache.layers
        self._recurrent = [layer for layer in layers if hasattr(layer, "recurrent_states")]
        self._attention = [layer for layer in layers if not hasattr(layer, "recurrent_states")]
        self._remembered: _States = []
        for layer in self._attention:
            if getattr(layer, "is_sliding", False):
                layer.activate_past_recording()  # else a token that falls out of the window can't come back

    def remember(self) -> None:
        """Call before a forward pass of which not everything may be kept."""
        self._remembered = [(_copied(layer.conv_states), _copied(layer.recurrent_states)) for layer in self._recurrent]

    def keep(self, *, processed: int, kept: int) -> int:
        """The last forward pass was over `processed` tokens, of which the first `kept` stay; return the new length.

        Where only whole passes can be taken back and kept is less than processed, nothing of it stays.
        """
        if kept < processed and self._recurrent:
            kept = 0
            for layer, (conv, recurrent) in zip(self._recurrent, self._remembered, strict=True):
                layer.conv_states, layer.recurrent_states = conv, recurrent
        for layer in self._attention:
            layer.crop(kept - processed)  # also by 0: a sliding layer then drops what its window has passed
        self._remembered = []
        self.length += kept
        return self.length

    def reorder(self, rows: torch.Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self.cache.reorder_cache(rows)  # type: ignore[arg-type]  # the library's name for a tensor of int64


def _copied(states: dict[int, Any]) -> dict[int, Any]:
    """The library writes states in place."""
    return {index: None if state is None else state.clone() for index, state in states.items()}
