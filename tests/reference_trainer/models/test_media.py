from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.data.images import Image
from reference_trainer.models.build import build_policy
from reference_trainer.models.media import (
    framed_patches,
    has_position_axes,
    image_tokens,
    padded_patches,
    placeholder_ids,
    tower_inputs,
)
from tests.reference_trainer.images import SEEING, image, policy
from tests.reference_trainer.tiny import MODELS

CPU = torch.device("cpu")


def noise(height: int, width: int) -> Image:
    """Every byte its own, so that no two places can be exchanged unseen."""
    generator = np.random.default_rng(height * 1000 + width)
    return Image(height=height, width=width, rgb=generator.bytes(3 * height * width))


def test_framed_patches_are_those_of_the_library_s_processor() -> None:
    pytest.importorskip("PIL")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    for patch, merged, frames in ((4, 2, 2), (2, 2, 3), (4, 1, 1)):
        processor = Qwen2VLImageProcessorPil(
            do_resize=False,
            patch_size=patch,
            merge_size=merged,
            temporal_patch_size=frames,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        )
        shown = [noise(16, 24), noise(8, 8)]
        expected = processor(images=[one.array for one in shown], return_tensors="pt")
        found = np.concatenate([framed_patches(one, patch=patch, merged=merged, frames=frames) for one in shown])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected["pixel_values"].numpy(), rtol=0, atol=1e-6)


def test_padded_patches_are_those_of_the_library_s_processor() -> None:
    pytest.importorskip("PIL")
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    processor = Gemma4ImageProcessorPil(do_resize=False, patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)
    shown = [noise(16, 24), noise(8, 8), noise(24, 8)]
    expected = processor(images=[one.array for one in shown], return_tensors="pt")
    pixels, places = padded_patches(shown, patch=4)
    assert pixels.shape == (3, 24, 48)  # the most patches of these images; the processor pads to its budget
    np.testing.assert_allclose(pixels, expected["pixel_values"][:, :24].numpy(), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(places, expected["image_position_ids"][:, :24].numpy())
    assert (expected["image_position_ids"][:, 24:] == -1).all()


def test_a_patch_holds_the_pixels_of_its_place() -> None:
    """Without the library: pixel by pixel, from the layout in words."""
    shown = noise(8, 16)
    pixels, places = padded_patches([shown], patch=4)
    for patch, (x, y) in zip(pixels[0], places[0], strict=True):
        expected = shown.array[4 * y : 4 * y + 4, 4 * x : 4 * x + 4] / 255
        np.testing.assert_allclose(patch.reshape(4, 4, 3), expected, rtol=0, atol=1e-6)
    framed = framed_patches(shown, patch=4, merged=2, frames=2).reshape(8, 3, 2, 4, 4)
    order = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]  # a block of 2 × 2, then the next
    for patch, (y, x) in zip(framed, order, strict=True):
        expected = shown.array[4 * y : 4 * y + 4, 4 * x : 4 * x + 4].transpose(2, 0, 1) / 127.5 - 1
        for frame in range(2):
            np.testing.assert_allclose(patch[:, frame], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SEEING)
@torch.no_grad()
def test_features_of_an_image_do_not_depend_on_the_images_beside_it(name: str) -> None:
    model = policy(name)
    shown = [noise(16, 24), noise(8, 8), noise(32, 16)]

    def features(images: list[Image]) -> tuple[torch.Tensor, ...]:
        return model.get_image_features(**tower_inputs(model, images, device=CPU)).pooler_output

    tokens = image_tokens(model.config)
    assert tokens is not None
    for together, one in zip(features(shown), shown, strict=True):
        assert len(together) == tokens.features(one)
        # Gemma4 pools in float32 whatever the dtype, over patches that a larger image beside it pads.
        torch.testing.assert_close(together, features([one])[0], rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", list(MODELS))
def test_what_a_model_has_is_read_from_what_was_built(name: str) -> None:
    model = build_policy(ModelConfig(**MODELS[name]), seed=0, dtype=torch.float32)
    sees = name in SEEING
    tokens = image_tokens(model.config)
    assert (tokens is not None) == sees
    assert placeholder_ids(model.config) == ((model.config.image_token_id,) if sees else ())
    assert has_position_axes(model) == has_position_axes(model.model) == (name == "qwen3.5-vl")
    if tokens is not None:
        assert tokens.side == 8
        assert tokens.most_features == (8 if name == "gemma4-vl" else None)


def test_an_image_with_more_features_than_the_tower_has_positions_is_refused() -> None:
    tokens = image_tokens(policy("gemma4-vl", torch.float32).config)
    assert tokens is not None
    assert tokens.grid(noise(64, 8)) == (8, 1)
    with pytest.raises(ValueError, match=r"72 × 8 pixels is larger than .* keep its sides to 64 pixels"):
        tokens.grid(noise(72, 8))


def test_a_model_of_an_unknown_layout_is_refused() -> None:
    class Stranger(torch.nn.Module):
        config: Any = policy("gemma4-vl", torch.float32).config

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels

    stranger: Any = Stranger()
    with pytest.raises(ValueError, match="Stranger takes neither image_grid_thw nor image_position_ids"):
        tower_inputs(stranger, [image()], device=CPU)


@pytest.mark.parametrize("name", SEEING)
@torch.no_grad()
def test_a_tower_in_bfloat16_takes_the_same_pixels(name: str) -> None:
    models: list[PreTrainedModel] = [policy(name, dtype) for dtype in (torch.float32, torch.bfloat16)]
    exact, rough = (
        model.get_image_features(**tower_inputs(model, [noise(16, 16)], device=CPU)).pooler_output[0]
        for model in models
    )
    assert rough.dtype == torch.bfloat16
    assert (exact - rough).abs().max() < 0.1 * exact.abs().max()
