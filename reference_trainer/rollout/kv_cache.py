"""A key-value cache whose full-attention layers are written in place, instead of being copied for every token.

The library's dynamic layer concatenates: a token costs a copy of all tokens before it. Values and shapes that a model
sees are the same, so is what it computes.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A dynamic layer with room for `capacity` tokens; more of them make it grow. `keys` and `values` are views."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append `(B, heads, new, D)` and return all `(B, heads, past + new, D)`."""
        past = self.get_seq_length()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = past + key_states.shape[-2]
        room = self._room
        if room is None or length > room[0].shape[-2] or not (_views(self.keys, room[0]) or past == 0):
            room = self._move(key_states, value_states, past=past, length=length)
        for states, new in zip(room, (key_states, value_states), strict=True):
            states[..., past:length, :] = new
        self.keys, self.values = (states[..., :length, :] for states in room)
        return self.keys, self.values

    def reset(self) -> None:
        super().reset()
        self._room = None

    def _move(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *, past: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """New room with what is held so far: at the start, when it is too small, or when the rows were changed."""
        if length > self._capacity:
            self._capacity = 2 * length  # so that growing copies each token a bounded number of times
        keys, values = (
            new.new_empty((*new.shape[:-2], self._capacity, new.shape[-1])) for new in (key_states, value_states)
        )
        if past:
            assert self.keys is not None
            assert self.values is not None
            keys[..., :past, :].copy_(self.keys)
            values[..., :past, :].copy_(self.values)
        self._room = keys, values
        return self._room


def roomy_cache(config: PreTrainedConfig, *, capacity: int) -> DynamicCache:
    """The library's cache for a model, with its growing full-attention layers replaced.

    Layers that hold a window, a state or an index of their own stay the library's.
    """
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _views(view: torch.Tensor | None, room: torch.Tensor) -> bool:
    """Is it the beginning of the room, and of all its rows? A reordered or reselected cache is not."""
    return view is not None and view.data_ptr() == room.data_ptr() and view.shape[:-2] == room.shape[:-2]
