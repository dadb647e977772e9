from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import torch
from transformers import PreTrainedModel

from reference_trainer.config import Architecture, ConfigError, LoraConfig, ModelConfig
from reference_trainer.data.tokenizer import (
    EOS_ID,
    IMAGE_ID,
    PAD_ID,
    VISION_END_ID,
    VISION_START_ID,
    VOCAB_SIZE,
    build_tokenizer,
    encode,
)
from reference_trainer.models.build import build_policy, transformers_config
from reference_trainer.models.capabilities import read_capabilities, vision_tower
from reference_trainer.models.families import FAMILIES
from reference_trainer.models.lora import adapted_layers, add_adapters
from tests.reference_trainer.tiny import MODELS

IMAGES = ("qwen3.5-vl", "gemma4-vl")


def model_config(name: str, *path: str, **keywords: Any) -> ModelConfig:
    """A tiny model with keywords added to the part of its configuration that the path names."""
    spec = copy.deepcopy(MODELS[name])
    part = spec["config"]
    for step in path:
        part = part[step]
    part.update(keywords)
    return ModelConfig(**spec)


def policy(name: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return build_policy(model_config(name), seed=0, dtype=dtype)


def test_every_architecture_of_the_configuration_has_its_classes_and_a_tiny_model() -> None:
    assert set(FAMILIES) == set(get_args(Architecture)) == set(MODELS)


@pytest.mark.parametrize("name", list(MODELS))
def test_token_ids_and_vocabulary_are_the_tokenizer_s_unless_given(name: str) -> None:
    text = transformers_config(model_config(name)).get_text_config()
    assert (text.vocab_size, text.pad_token_id, text.eos_token_id) == (VOCAB_SIZE, PAD_ID, EOS_ID)
    if "vl" not in name:
        assert transformers_config(model_config(name, vocab_size=999)).vocab_size == 999


@pytest.mark.parametrize("name", IMAGES)
def test_the_ids_of_an_image_are_ids_that_no_text_is_encoded_to(name: str) -> None:
    config = transformers_config(model_config(name))
    assert config.image_token_id == IMAGE_ID
    start, end = ("boi", "eoi") if name == "gemma4-vl" else ("vision_start", "vision_end")
    assert getattr(config, f"{start}_token_id") == VISION_START_ID
    assert getattr(config, f"{end}_token_id") == VISION_END_ID
    tokenizer = build_tokenizer()
    text = "".join(tokenizer.convert_ids_to_tokens([IMAGE_ID, VISION_START_ID, VISION_END_ID]))
    assert not {IMAGE_ID, VISION_START_ID, VISION_END_ID} & set(encode(tokenizer, text))
    assert len({IMAGE_ID, VISION_START_ID, VISION_END_ID}) == 3
    assert max(IMAGE_ID, VISION_START_ID, VISION_END_ID) < VOCAB_SIZE


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            model_config("qwen3.5-vl", "text_config", hiden_size=8),
            r'unknown key "model.config.text_config.hiden_size" \(value 8\); did you mean "hidden_size"',
        ),
        (
            model_config("gemma4-vl", "vision_config", patch_sise=4),
            r'unknown key "model.config.vision_config.patch_sise" \(value 4\); did you mean "patch_size"',
        ),
        (
            model_config("gemma4-vl", txt_config={}),
            'unknown key "model.config.txt_config" .*did you mean "text_config"',
        ),
        (model_config("qwen3.5-vl", "vision_config", global_head_dim=4), 'unknown key "model.config.vision_config.glo'),
        (model_config("qwen3.5-vl", full_attention_interval=4), 'unknown key "model.config.full_attention_interval"'),
        (model_config("qwen3", full_attention_interval=4), 'unknown key "model.config.full_attention_interval"'),
        (model_config("gemma4-vl", audio_config={"hidden_size": 8}), '"model.config.audio_config" asks for a part'),
        (model_config("gemma4-vl", vision_config=None), '"model.config.vision_config" is None; it should be a mapping'),
        (model_config("gemma4-vl", vision_config={}), '"model.config.vision_config" is missing; a model that takes'),
        (model_config("qwen3.5-vl", text_config=[1]), r'"model.config.text_config" is \[1\]; it should be a mapping'),
        (model_config("qwen3.5-vl", "vision_config", out_hidden_size=48), "out_hidden_size.* is 48 and .* is 32; make"),
        (model_config("qwen3.5-moe", num_experts="many"), "model.config does not make a Qwen3_5MoeTextConfig: "),
        (model_config("qwen3.5-vl", "vision_config", num_heads="two"), "does not make a Qwen3_5Config: "),
    ],
)
def test_what_makes_no_model_is_refused_by_its_path(model: ModelConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        build_policy(model, seed=0, dtype=torch.float32)
    assert "\n" not in str(caught.value)


def test_a_keyword_that_the_class_converts_is_taken_at_its_depth() -> None:
    text = transformers_config(model_config("gemma4-vl", "text_config", global_head_dim=24)).get_text_config()
    assert text.per_layer_config[1].head_dim == 24
    spec = MODELS["qwen3.5"]["config"]
    config = {**{key: value for key, value in spec.items() if key != "layer_types"}, "full_attention_interval": 2}
    made = transformers_config(ModelConfig(architecture="qwen3.5", config=config))
    assert made.layer_types == ["linear_attention", "full_attention"]


@pytest.mark.parametrize("name", list(MODELS))
def test_capabilities_of_every_family(name: str) -> None:
    found = read_capabilities(policy(name))
    assert found.takes_images == (name in IMAGES)
    assert found.experts == (4 if name == "qwen3.5-moe" else 0)
    assert found.mixture_of_experts == (name == "qwen3.5-moe")
    assert found.linear_attention == name.startswith("qwen3.5") == bool(found.why_not_packed)
    assert found.sliding_window == (4 if name.startswith("gemma4") else None)
    assert found.max_positions == 128
    assert found.tied_head == (name != "llama")


def test_experts_are_found_in_another_family_too() -> None:
    model = model_config("gemma4", enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16)
    for dtype in (torch.float32, torch.float64):
        built = build_policy(model, seed=0, dtype=dtype)
        assert read_capabilities(built).experts == 6
        built(input_ids=torch.arange(6)[None]).logits.sum().backward()
        assert all(parameter.grad is not None for parameter in built.parameters())
    add_adapters(built, LoraConfig(rank=2), seed=0)
    assert not [path for path, _ in adapted_layers(built) if "router" in path]


def _gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(input_ids=torch.arange(20, 52).reshape(4, 8)).logits.logsumexp(-1).mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}  # type: ignore[misc]


def test_router_and_experts_train_and_float32_has_float64_s_gradients() -> None:
    """float32 takes the grouped product and float64 the loop over experts: two ways, one model."""
    exact, single = _gradients(policy("qwen3.5-moe")), _gradients(policy("qwen3.5-moe", torch.float32))
    assert policy("qwen3.5-moe", torch.float32).config._experts_implementation == "grouped_mm"
    assert policy("qwen3.5-moe").config._experts_implementation == "eager"
    for name, gradient in exact.items():
        size = gradient.abs().max()
        assert size > 0, name
        # rounding of a few hundred terms a sum; a wrong routing or scale is off by its own size
        assert (single[name] - gradient).abs().max() < 1e-3 * size + 1e-9, name
    again = _gradients(policy("qwen3.5-moe", torch.float32))
    assert all(torch.equal(again[name], gradient) for name, gradient in single.items())


def test_bfloat16_trains_router_and_experts() -> None:
    found = _gradients(policy("qwen3.5-moe", torch.bfloat16))
    for name, gradient in found.items():
        assert torch.isfinite(gradient).all(), name
        assert gradient.abs().max() > 0 or "expert" not in name, name


def _seen(name: str, model: PreTrainedModel, pixels: torch.Tensor) -> torch.Tensor:
    """Hidden states over an image of 16 × 16 pixels, four tokens of it, in its marks and a text."""
    row = [5, VISION_START_ID, *[IMAGE_ID] * 4, VISION_END_ID, 6, 7]
    inputs: dict[str, Any] = {"input_ids": torch.tensor([row])}
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE_ID).long()
    if name == "qwen3.5-vl":
        inputs["pixel_values"] = torch.cat([pixels, pixels], dim=-1)  # one image counts as two frames
        inputs["image_grid_thw"] = torch.tensor([[1, 4, 4]])
    else:
        inputs["pixel_values"] = pixels[None]
        places = torch.cartesian_prod(torch.arange(4), torch.arange(4)).flip(-1)
        inputs["image_position_ids"] = places[None]
    return model.model(**inputs, use_cache=False).last_hidden_state


@pytest.mark.parametrize("name", IMAGES)
def test_a_tiny_model_sees_an_image_and_its_tower_is_trained(name: str) -> None:
    model = policy(name, torch.float32)
    pixels = torch.rand(16, 3 * 4 * 4, generator=torch.Generator().manual_seed(0))
    first, other = (_seen(name, model, one) for one in (pixels, 1 - pixels))
    assert torch.equal(first[:, :2], other[:, :2]), "what stands before the image does not see it"
    assert (first[:, -1] - other[:, -1]).abs().max() > 1e-4, "what stands behind it does"
    first[:, -1].square().sum().backward()
    tower = vision_tower(model)
    assert tower is not None
    for key, parameter in tower.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
    assert any(parameter.grad.abs().max() > 0 for parameter in tower.parameters() if parameter.grad is not None)
