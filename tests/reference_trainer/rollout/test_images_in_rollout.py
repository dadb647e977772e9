from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.data.images import Image
from reference_trainer.models.build import build_policy
from reference_trainer.models.capabilities import read_capabilities
from reference_trainer.models.media import placeholder_ids, tower_inputs
from reference_trainer.rollout.engine import Sample, SamplingRequest
from reference_trainer.rollout.native import NativeEngine
from reference_trainer.rollout.prefill import prefill
from reference_trainer.rollout.replica_process import decode_request, encode_request
from reference_trainer.rollout.replicas import ReplicaPool
from reference_trainer.rollout.self_drafter import SelfDrafter
from tests.reference_trainer.images import SEEING, image, policy, prompt
from tests.reference_trainer.tiny import MODELS

TOKENS = 7


def engine(model: PreTrainedModel, **changes: Any) -> NativeEngine:
    return NativeEngine(model, **{"eos_id": None, "pad_id": 256, **changes})


def asked(model: PreTrainedModel, *, temperature: float = 0.7) -> list[SamplingRequest]:
    """Prompts of two lengths, 12 and 20 tokens, that differ in number, shape and place of their images."""
    layouts: list[tuple[Image | tuple[int, ...], ...]] = [
        (image(16, 16), (3, 4, 5, 6, 7, 8)),
        ((3, 4, 5, 6), image(16, 16, seed=1), (7, 8)),
        (image(24, 8, seed=2), (9,), image(8, 8, seed=3), (10, 11, 12)),
        (tuple(range(20, 32)),),
        (image(16, 16, seed=4), (3, 4, 5, 6, 7, 8)),  # the first one's ids with another image
        ((3, 4, 5), image(32, 8, seed=5), image(8, 16, seed=6), (9,), image(8, 32, seed=7)),
        (tuple(range(40, 60)),),
        (image(8, 48, seed=8), image(16, 16, seed=9), (13, 14, 15, 16, 17, 18)),
    ]
    made = [
        SamplingRequest(
            prompt=prompt(model, *layout),
            images=tuple(part for part in layout if isinstance(part, Image)),
            seed=row,
            max_tokens=TOKENS,
            temperature=temperature,
        )
        for row, layout in enumerate(layouts)
    ]
    return [*made, replace(made[1], seed=100)]  # one prompt twice


def as_the_library_does(model: PreTrainedModel, request: SamplingRequest, sample: Sample) -> torch.Tensor:
    """Logits `(T, V)` that predict the response, from one pass without a cache and with the model's own positions."""
    ids = torch.tensor([[*request.prompt, *sample.tokens]])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if request.images:
        inputs |= tower_inputs(model, request.images, device=torch.device("cpu"))
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).long()
    model.model.rope_deltas = None
    logits = model(**inputs, use_cache=False).logits[0, len(request.prompt) - 1 : -1]
    model.model.rope_deltas = None
    return logits.detach()


def close(model: PreTrainedModel) -> float:
    """The library computes a linear-attention state in float32 whatever the dtype, token by token or in chunks."""
    return 5e-5 if read_capabilities(model).linear_attention else 1e-9


@pytest.mark.parametrize("name", SEEING)
@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_prompts_with_images_give_what_a_full_forward_pass_gives(name: str, temperature: float) -> None:
    model = policy(name)
    requests = asked(model, temperature=temperature)
    assert sorted({len(request.prompt) for request in requests}) == [12, 20]
    for request, sample in zip(requests, engine(model).generate(requests), strict=True):
        logits = as_the_library_does(model, request, sample)
        expected = (logits / (temperature or 1.0)).log_softmax(-1)[torch.arange(TOKENS), list(sample.tokens)]
        np.testing.assert_allclose(sample.log_probs, expected.numpy(), rtol=0, atol=close(model))
        if temperature == 0.0:
            assert (
                list(sample.tokens)
                == logits.index_fill(-1, torch.tensor(placeholder_ids(model.config)), -torch.inf).argmax(-1).tolist()
            )


@pytest.mark.parametrize("name", SEEING)
def test_a_draw_does_not_depend_on_batch_mates_order_or_chunks(name: str) -> None:
    model = policy(name)
    requests = asked(model)
    together = engine(model).generate(requests)
    assert len({sample.tokens for sample in together}) > 4
    alone = [engine(model).generate([request])[0] for request in requests]
    backwards = engine(model).generate(requests[::-1])[::-1]
    chunked = engine(model, max_rows=2).generate(requests)
    for others in (alone, backwards, chunked):
        assert [sample.tokens for sample in others] == [sample.tokens for sample in together]


@pytest.mark.parametrize("name", SEEING)
def test_equal_prompts_are_shared_and_equal_ids_with_other_images_are_not(name: str) -> None:
    model = policy(name)
    requests = [request for request in asked(model) if len(request.prompt) == 12]
    first = prefill(model, requests)
    assert first.shared
    assert first.rows.tolist() == [0, 1, 2, 3, 4, 1]
    assert requests[0].prompt == requests[4].prompt
    samples = engine(model).generate([replace(one, temperature=0.0) for one in (requests[0], requests[4])])
    assert samples[0].log_probs != samples[1].log_probs


def test_what_another_call_left_in_the_model_is_not_read() -> None:
    model = policy("qwen3.5-vl")
    requests = asked(model)
    before = engine(model).generate(requests)
    assert model.model.rope_deltas is None
    model.model.rope_deltas = torch.tensor([[30]])
    assert engine(model).generate(requests) == before


@pytest.mark.parametrize("name", SEEING)
@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_placeholder_is_never_drawn_and_log_probs_know_no_ban(name: str, drafts: int, temperature: float) -> None:
    model = policy(name)
    requests = asked(model, temperature=temperature)
    free = engine(model).generate(requests)
    favourite = max({token for sample in free for token in sample.tokens}, key=lambda t: _share(free, t))
    model.config.video_token_id = favourite  # another medium's, so that the images stay as they are
    assert favourite in placeholder_ids(model.config)
    held = engine(model, draft_tokens=drafts, drafter=SelfDrafter()).generate(requests)
    assert _share(held, favourite) == 0 < _share(free, favourite)
    for request, sample in zip(requests, held, strict=True):
        logits = as_the_library_does(model, request, sample)
        expected = logits.log_softmax(-1)[torch.arange(TOKENS), list(sample.tokens)]
        np.testing.assert_allclose(sample.log_probs, expected.numpy(), rtol=0, atol=close(model))


def _share(samples: list[Sample], token: int) -> int:
    return sum(sample.tokens.count(token) for sample in samples)


@pytest.mark.parametrize("name", SEEING)
def test_drafts_change_no_greedy_token_behind_images(name: str) -> None:
    model = policy(name)
    requests = asked(model, temperature=0.0)
    plain, drafted = (engine(model, draft_tokens=drafts, drafter=SelfDrafter()).generate(requests) for drafts in (0, 3))
    for one, other in zip(plain, drafted, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=0, atol=close(model))


@pytest.mark.parametrize("name", SEEING)
def test_images_that_do_not_fit_their_prompt_are_refused_by_request(name: str) -> None:
    model = policy(name, torch.float32)
    good = asked(model)[0]
    for bad, said in (
        (replace(good, images=()), "request 1 has 4 image placeholders, but its 0 images have 0 features"),
        (
            replace(good, images=(image(16, 24),)),
            "request 1 has 4 image placeholders, but its 1 images have 6 features",
        ),
        (replace(good, prompt=(1, 2)), "request 1 has 0 image placeholders, but its 1 images have 4 features"),
    ):
        with pytest.raises(ValueError, match=said):
            engine(model).generate([good, bad])


def test_a_model_of_text_refuses_images() -> None:
    model = build_policy(ModelConfig(**MODELS["qwen3"]), seed=0, dtype=torch.float32)
    with pytest.raises(ValueError, match="request 0 has 1 images, but Qwen3ForCausalLM has no vision tower"):
        engine(model).generate([SamplingRequest(prompt=(1,), seed=0, max_tokens=1, images=(image(),))])


def test_a_request_travels_whole() -> None:
    model = policy("gemma4-vl", torch.float32)
    for request in asked(model):
        sent = replace(request, top_p=0.9, top_k=3, draft_tokens=2)
        assert decode_request(msgpack.unpackb(msgpack.packb(encode_request(sent)))) == sent


def _engine_of(name: str) -> NativeEngine:
    return engine(policy(name, torch.float32))


@pytest.mark.parametrize("name", ["qwen3.5-vl", "gemma4-vl"])
def test_replicas_read_the_images_of_their_requests(name: str) -> None:
    one = _engine_of(name)
    requests = asked(one.model)
    with tempfile.TemporaryDirectory(prefix="rlg-test-") as base:
        pool = ReplicaPool(
            replicas=2, engine_factory=functools.partial(_engine_of, name), job=f"images-{os.getpid()}", base_dir=base
        )
        try:
            for got, expected in zip(pool.generate(requests), one.generate(requests), strict=True):
                assert got.tokens == expected.tokens
                assert got.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
        finally:
            pool.close()
