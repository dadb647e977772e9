from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.data.padding import Side
from reference_trainer.models.build import build_policy
from reference_trainer.models.capabilities import read_capabilities, vision_tower
from reference_trainer.models.critic import build_critic
from reference_trainer.models.inputs import Positions, model_inputs, prompt_inputs
from reference_trainer.models.media import image_tokens, tower_inputs
from reference_trainer.trainers.forward import response_log_probs, response_values
from tests.reference_trainer.images import SEEING, image, mixed_rows, model_config, policy, prompt, row
from tests.reference_trainer.tiny import MODELS

PAD = 256
CPU = torch.device("cpu")


def close(model: PreTrainedModel, side: Side = "right") -> dict[str, float]:
    """How near two ways of computing a log-prob should be."""
    if model.dtype == torch.float32:
        return {"rtol": 0.0, "atol": 5e-5}
    # The library computes a linear-attention state in float32, over chunks that left padding moves.
    return {"rtol": 0.0, "atol": 2e-5 if side == "left" and read_capabilities(model).linear_attention else 1e-9}


def as_the_library_does(model: PreTrainedModel, one: Row) -> torch.Tensor:
    """Log-probs of a row's response, alone and unpadded, with positions that the model finds for itself."""
    model.model.rope_deltas = None
    ids = torch.tensor([[*one.prompt, *one.response]])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if one.images:
        inputs |= tower_inputs(model, one.images, device=CPU)
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).long()
    logits = model(**inputs, use_cache=False).logits[0, len(one.prompt) - 1 : -1]
    model.model.rope_deltas = None
    return logits.log_softmax(-1)[range(len(one.response)), list(one.response)]


@pytest.mark.parametrize("name", SEEING)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@torch.no_grad()
def test_log_probs_with_images_are_the_library_s_own_whatever_the_layout(
    name: str, side: Side, dtype: torch.dtype
) -> None:
    model = policy(name, dtype)
    rows = mixed_rows(model)
    batch = lay_out(rows, pad_id=PAD, side=side, extra_padding=7)
    found, _ = response_log_probs(model, batch, temperature=1.0)
    for index, one in enumerate(rows):
        if not one.response:
            continue
        alone, _ = response_log_probs(model, lay_out([one], pad_id=PAD), temperature=1.0)
        for expected in (as_the_library_does(model, one), alone[0]):
            torch.testing.assert_close(found[index, : len(one.response)], expected, **close(model, side))
        assert not found[index, len(one.response) :].any()


@pytest.mark.parametrize("name", SEEING)
@torch.no_grad()
def test_every_image_of_a_row_is_seen_and_no_other_row_s(name: str) -> None:
    model = policy(name)
    rows = mixed_rows(model)
    before, _ = response_log_probs(model, lay_out(rows, pad_id=PAD), temperature=1.0)
    for index, one in enumerate(rows[:-1]):
        for place, shown in enumerate(one.images):
            other = image(shown.height, shown.width, seed=100 + place)
            changed = one._replace(images=(*one.images[:place], other, *one.images[place + 1 :]))
            batch = lay_out([*rows[:index], changed, *rows[index + 1 :]], pad_id=PAD)
            gap = (response_log_probs(model, batch, temperature=1.0)[0] - before).abs().amax(1)
            assert gap[index] > 1e-3, (index, place)
            gap[index] = 0
            assert gap.max() < 1e-9


@pytest.mark.parametrize("name", SEEING)
@torch.no_grad()
def test_images_are_told_apart_by_their_order(name: str) -> None:
    model = policy(name)
    first, second = image(seed=1), image(seed=2)
    rows = [row(model, (3,), one, (4,), other, (5,)) for one, other in ((first, second), (second, first))]
    found, _ = response_log_probs(model, lay_out(rows, pad_id=PAD), temperature=1.0)
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", SEEING)
def test_the_tower_gets_its_gradient_from_the_response(name: str) -> None:
    model = policy(name)
    rows = mixed_rows(model)
    found, _ = response_log_probs(model, lay_out(rows, pad_id=PAD), temperature=1.0)
    found.sum().backward()
    tower = vision_tower(model)
    assert tower is not None
    gradients = {key: parameter.grad for key, parameter in tower.named_parameters()}
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients.values())
    moved = [key for key, gradient in gradients.items() if gradient is not None and gradient.abs().max() > 1e-6]
    assert len(moved) > len(gradients) / 2, moved


@pytest.mark.parametrize("name", SEEING)
def test_the_batch_s_gradient_is_the_sum_of_its_rows_gradients(name: str) -> None:
    model = policy(name)
    rows = mixed_rows(model)

    def gradients(batches: list[list[Row]]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        for part in batches:
            response_log_probs(model, lay_out(part, pad_id=PAD), temperature=1.0)[0].sum().backward()
        return {key: one.grad.clone() for key, one in model.named_parameters() if one.grad is not None}

    together, apart = gradients([rows]), gradients([[one] for one in rows if one.response])
    for key, whole in together.items():
        bound = 1e-5 * float(whole.abs().max()) + 1e-9
        assert (apart.get(key, torch.zeros_like(whole)) - whole).abs().max() < bound, key


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("side", ["left", "right"])
def test_without_images_the_inputs_are_the_text_path_s(name: str, side: Side) -> None:
    model = build_policy(ModelConfig(**MODELS[name]), seed=0, dtype=torch.float32)
    batch = lay_out([Row((1, 2, 3), (4,)), Row((5,), (6, 7))], pad_id=PAD, side=side)
    for silent in (batch, dataclasses.replace(batch, images=())):
        inputs = model_inputs(model.model, silent)
        assert set(inputs) == {"input_ids", "attention_mask", "position_ids"}
        assert inputs["position_ids"] is batch.position_ids
        real = batch.attention_mask == 1
        assert torch.equal(inputs["position_ids"][real], (batch.attention_mask.cumsum(-1) - 1)[real])


@settings(max_examples=30, deadline=None)
@given(data=st.data(), side=st.sampled_from(["left", "right"]), extra=st.integers(0, 3))
def test_positions_are_those_of_the_library_s_own_index(data: st.DataObject, side: Side, extra: int) -> None:
    model = _qwen()
    texts = st.lists(st.integers(0, 255), min_size=1, max_size=3).map(tuple)
    sides = st.sampled_from([8, 16, 24])
    pictures = st.builds(image, sides, sides)
    segments = st.lists(texts | pictures, min_size=1, max_size=5).filter(
        lambda found: sum(not isinstance(part, tuple) for part in found) <= 3
    )
    rows = [row(model, *found) for found in data.draw(st.lists(segments, min_size=1, max_size=4))]
    batch = lay_out(rows, pad_id=PAD, side=side, extra_padding=extra)
    inputs = model_inputs(model.model, batch)
    expected, deltas = model.model.get_rope_index(
        batch.input_ids,
        mm_token_type_ids=(batch.input_ids == model.config.image_token_id).long(),
        image_grid_thw=inputs.get("image_grid_thw"),
        attention_mask=batch.attention_mask,
    )
    positions = inputs["position_ids"].expand(3, *batch.input_ids.shape)
    real = batch.attention_mask == 1
    assert torch.equal(positions[:, real], expected[:, real])
    for index, one in enumerate(rows):
        if not one.images:
            assert torch.equal(positions[:, index][:, real[index]], torch.arange(real[index].sum()).expand(3, -1))
        _, behind = prompt_inputs(model, [one.prompt], [one.images], device=CPU)
        response = behind.inputs(0, len(one.response))["position_ids"].expand(3, 1, -1)[:, 0]
        assert torch.equal(response, expected[:, index][:, real[index]][:, len(one.prompt) :])
        assert response[0, 0] == len(one.prompt) + deltas[index]


_MADE: dict[str, PreTrainedModel] = {}


def _qwen() -> PreTrainedModel:
    if not _MADE:
        _MADE["qwen3.5-vl"] = policy("qwen3.5-vl", torch.float32)
    return _MADE["qwen3.5-vl"]


def test_one_feature_more_than_placeholders_is_refused_by_row_with_both_counts() -> None:
    for name in SEEING:
        model = policy(name, torch.float32)
        good = row(model, image(), (3,))
        less = good._replace(prompt=tuple(token for index, token in enumerate(good.prompt) if index != 1))
        bare = Row((1, 2), (3,), good.images)
        orphan = Row(good.prompt, (3,))
        torn = good._replace(prompt=(*good.prompt[:2], 7, *good.prompt[2:]))
        for bad, said in (
            (less, "row 1 has 3 image placeholders, but its 1 images have 4 features"),
            (bare, "row 1 has 0 image placeholders, but its 1 images have 4 features"),
            (orphan, "row 1 has 4 image placeholders, but its 0 images have 0 features"),
            (torn, "row 1 has other tokens between the placeholders of its image 0"),
            (good._replace(images=(image(12, 16),)), "does not divide into the 8 × 8"),
        ):
            with pytest.raises(ValueError, match=said):
                model_inputs(model.model, lay_out([good, bad], pad_id=PAD))


def test_counts_that_only_agree_over_the_batch_are_refused() -> None:
    """Two rows whose mistakes cancel: the library's own check, over the whole batch, passes them."""
    model = policy("gemma4-vl", torch.float32)
    one, two = row(model, image(16, 16), (3,)), row(model, image(16, 24), (3,))
    with pytest.raises(ValueError, match="row 0 has 4 image placeholders, but its 1 images have 6 features"):
        model_inputs(
            model.model, lay_out([one._replace(images=two.images), two._replace(images=one.images)], pad_id=PAD)
        )


def test_a_model_of_text_refuses_images_by_row() -> None:
    model = build_policy(ModelConfig(**MODELS["qwen3"]), seed=0, dtype=torch.float32)
    with pytest.raises(ValueError, match="row 1 has 1 images, but Qwen3Model has no vision tower"):
        model_inputs(model.model, lay_out([Row((1,), (2,)), Row((1,), (2,), (image(),))], pad_id=PAD))


def test_the_model_s_own_offset_is_neither_set_nor_read() -> None:
    model = policy("qwen3.5-vl", torch.float32)
    rows = mixed_rows(model)
    batch = lay_out(rows, pad_id=PAD)
    with torch.no_grad():
        before, _ = response_log_probs(model, batch, temperature=1.0)
        assert model.model.rope_deltas is None
        model.model.rope_deltas = torch.full((len(rows), 1), 40)
        after, _ = response_log_probs(model, batch, temperature=1.0)
    assert torch.equal(before, after)


def test_positions_behind_prompts_follow_their_rows() -> None:
    behind = Positions(first=torch.tensor([5, 9]), axes=3).select(torch.tensor([1, 0, 1]))
    assert behind.inputs(2, 2)["position_ids"].tolist() == [[[11, 12], [7, 8], [11, 12]]] * 3
    assert Positions(first=torch.tensor([5])).inputs(0)["position_ids"].tolist() == [[5]]
    assert Positions(first=None).inputs(0) == {}


@pytest.mark.parametrize("name", SEEING)
@torch.no_grad()
def test_a_critic_sees_what_the_policy_sees(name: str) -> None:
    critic = build_critic(model_config(name), seed=0, dtype=torch.float64)
    critic.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    model = policy(name)
    rows = mixed_rows(model)
    values = response_values(critic, lay_out(rows, pad_id=PAD))
    for index, one in enumerate(rows[:-1]):
        alone = response_values(critic, lay_out([one], pad_id=PAD))[0]
        torch.testing.assert_close(values[index, : len(one.response)], alone, rtol=0.0, atol=1e-9)
    changed = [one._replace(images=tuple(image(x.height, x.width, seed=77) for x in one.images)) for one in rows]
    gap = (response_values(critic, lay_out(changed, pad_id=PAD)) - values).abs().amax(1)
    assert [bool(found > 1e-6) for found in gap] == [bool(one.images and one.response) for one in rows]


@pytest.mark.parametrize("name", SEEING)
def test_what_stands_for_an_image_is_marks_and_one_placeholder_a_feature(name: str) -> None:
    model = policy(name, torch.float32)
    tokens = image_tokens(model.config)
    assert tokens is not None
    shown = image(16, 24)
    ids = prompt(model, shown)
    assert ids == (tokens.start_id, *[model.config.image_token_id] * 6, tokens.end_id)
    features = model.get_image_features(**tower_inputs(model, [shown, image(8, 8)], device=CPU)).pooler_output
    assert [len(one) for one in features] == [6, 1]
