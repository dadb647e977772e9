from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from reference_trainer.config import ModelConfig
from reference_trainer.models.build import build_policy
from reference_trainer.rollout.kv_cache import RoomyLayer, roomy_cache
from tests.reference_trainer.tiny import MODELS


def states(tokens: int, *, rows: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, 3, tokens, 4, generator=generator) for _ in range(2))  # type: ignore[return-value]


def assert_same(ours: RoomyLayer, library: DynamicLayer, new: tuple[torch.Tensor, torch.Tensor]) -> None:
    for mine, theirs in zip(ours.update(*new), library.update(*new), strict=True):
        assert torch.equal(mine, theirs)
    assert ours.get_seq_length() == library.get_seq_length()


@pytest.mark.parametrize("capacity", [1, 5, 7, 100])
def test_it_holds_what_the_librarys_layer_holds_as_it_grows(capacity: int) -> None:
    ours, library = RoomyLayer(capacity), DynamicLayer()
    for step, tokens in enumerate([5, 1, 1, 1, 3, 1]):
        assert_same(ours, library, states(tokens, seed=step))


def test_it_goes_on_after_rows_are_reordered_and_repeated() -> None:
    ours, library = RoomyLayer(50), DynamicLayer()
    assert_same(ours, library, states(5))
    for index in ([1, 0], [0, 0, 1, 1, 1]):
        for layer in (ours, library):
            layer.reorder_cache(torch.tensor(index))
        for seed in (1, 2):
            assert_same(ours, library, states(1, rows=len(index), seed=seed))


def test_tokens_that_are_cropped_are_written_over() -> None:
    ours, library = RoomyLayer(50), DynamicLayer()
    assert_same(ours, library, states(5))
    for layer in (ours, library):
        layer.crop(-3)
    assert_same(ours, library, states(2, seed=1))


def test_after_a_reset_it_starts_anew() -> None:
    ours, library = RoomyLayer(50), DynamicLayer()
    assert_same(ours, library, states(5))
    for layer in (ours, library):
        layer.reset()
    assert_same(ours, library, states(2, rows=4, seed=1))


def test_a_token_within_the_capacity_copies_nothing() -> None:
    layer = RoomyLayer(8)
    places = {layer.update(*states(tokens))[0].data_ptr() for tokens in (5, 1, 2)}
    assert len(places) == 1


@pytest.mark.parametrize("name", list(MODELS))
@torch.no_grad()
def test_a_model_computes_with_it_what_it_computes_with_the_librarys(name: str) -> None:
    model = build_policy(ModelConfig(**MODELS[name]), seed=0, dtype=torch.float64)
    ids = torch.arange(36).view(3, 12)
    for ours in (roomy_cache(model.config, capacity=12), roomy_cache(model.config, capacity=1)):
        theirs = DynamicCache(config=model.config)
        for part in ids.split([6, 1, 1, 1, 1, 1, 1], dim=1):
            mine, expected = (model(input_ids=part, past_key_values=cache).logits for cache in (ours, theirs))
            assert torch.equal(mine, expected)
