from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.data.tokenizer import EOS_ID, PAD_ID
from reference_trainer.models.build import build_policy
from reference_trainer.models.capabilities import read_capabilities
from reference_trainer.rollout.engine import FinishReason, SamplingRequest
from reference_trainer.rollout.native import NativeEngine
from reference_trainer.weights.export import export_tensors
from tests.reference_trainer.tiny import MODELS


def policy(
    name: str = "qwen3", *, seed: int = 0, dtype: torch.dtype = torch.float64, std: float = 0.3
) -> PreTrainedModel:
    """Weights wide enough that the next token depends on the prompt."""
    return build_policy(ModelConfig(**{**MODELS[name], "init_std": std}), seed=seed, dtype=dtype)


def engine(model: PreTrainedModel, *, eos_id: int | None = EOS_ID, max_rows: int = 256) -> NativeEngine:
    return NativeEngine(model, eos_id=eos_id, pad_id=PAD_ID, max_rows=max_rows)


def requests(count: int, *, max_tokens: int = 8, **changes: object) -> list[SamplingRequest]:
    """Prompts of 1 to 3 lengths, each its own seed."""
    return [
        SamplingRequest(
            prompt=tuple((7 * row + column) % 256 for column in range(5 + row % 3)),
            seed=100 + row,
            max_tokens=max_tokens,
            **changes,  # type: ignore[arg-type]
        )
        for row in range(count)
    ]


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_the_cache_gives_what_a_full_forward_pass_gives(name: str, temperature: float) -> None:
    model = policy(name)
    asked = requests(6, temperature=temperature)
    for request, sample in zip(asked, engine(model, eos_id=None).generate(asked), strict=True):
        assert len(sample.tokens) == len(sample.log_probs) == 8
        row = torch.tensor([(*request.prompt, *sample.tokens)])
        logits = model(input_ids=row, use_cache=False).logits[0, len(request.prompt) - 1 : -1]
        expected = (logits / (temperature or 1.0)).log_softmax(-1)
        np.testing.assert_allclose(
            sample.log_probs,
            expected[torch.arange(8), list(sample.tokens)].detach().numpy(),
            # The library computes the linear-attention state in float32 whatever the model's dtype.
            atol=1e-5 if read_capabilities(model).linear_attention else 1e-9,
        )
        if temperature == 0.0:
            assert list(sample.tokens) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("name", list(MODELS))
def test_a_draw_does_not_depend_on_batch_mates_order_or_chunks(name: str) -> None:
    model = policy(name)
    asked = requests(7)
    together = engine(model).generate(asked)
    assert len({sample.tokens for sample in together}) > 1
    alone = [engine(model).generate([request])[0] for request in asked]
    backwards = engine(model).generate(asked[::-1])[::-1]
    chunked = engine(model, max_rows=2).generate(asked)
    for others in (alone, backwards, chunked):
        assert [sample.tokens for sample in others] == [sample.tokens for sample in together]


def test_a_draw_is_decided_by_its_seed() -> None:
    model = policy()
    asked = requests(4, temperature=2.0)
    again = engine(model).generate(asked)
    assert again == engine(model).generate(asked)
    other = engine(model).generate([replace(request, seed=request.seed + 1000) for request in asked])
    assert all(a.tokens != b.tokens for a, b in zip(again, other, strict=True))


def test_a_longer_budget_continues_the_same_draw() -> None:
    model = policy()
    short, long = (engine(model, eos_id=None).generate(requests(3, max_tokens=n)) for n in (3, 20))
    assert [sample.tokens for sample in short] == [sample.tokens[:3] for sample in long]


def test_the_first_token_has_the_models_distribution() -> None:
    """A chi-square test at one in a million over a vocabulary cut to the 8 likeliest tokens."""
    model = policy(std=0.1)
    prompt = (1, 2, 3)
    logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    likeliest = logits.topk(8).indices
    probabilities = logits[likeliest].softmax(-1)
    count = 4000
    asked = [SamplingRequest(prompt=prompt, seed=seed, max_tokens=1, top_k=8) for seed in range(count)]
    drawn = [sample.tokens[0] for sample in engine(model).generate(asked)]
    observed = np.array([drawn.count(token) for token in likeliest.tolist()])
    assert observed.sum() == count
    expected = probabilities.detach().numpy() * count
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < 40.5  # chi-square, 7 degrees of freedom, p = 1e-6


def test_a_sample_ends_with_its_end_token_or_with_its_budget() -> None:
    model = policy()
    first = engine(model).generate(requests(4, temperature=0.0))
    stop = first[1].tokens[2]
    samples = engine(model, eos_id=stop).generate(requests(4, temperature=0.0))
    assert samples[1].tokens == first[1].tokens[: first[1].tokens.index(stop) + 1]
    assert samples[1].finish_reason is FinishReason.STOP
    for sample in samples:
        stopped = sample.tokens[-1] == stop
        assert sample.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert stopped or len(sample.tokens) == 8
        assert stop not in sample.tokens[:-1]


def test_budgets_may_differ_within_a_batch() -> None:
    asked = [replace(request, max_tokens=1 + row) for row, request in enumerate(requests(4))]
    samples = engine(policy(), eos_id=None).generate(asked)
    assert [len(sample.tokens) for sample in samples] == [1, 2, 3, 4]


def test_no_requests_give_no_samples() -> None:
    assert engine(policy()).generate([]) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": ()}, "request 1 has an empty prompt"),
        ({"max_tokens": 0}, "request 1 has max_tokens 0"),
        ({"max_tokens": 128}, r"request 1 needs 6 \+ 128 positions but the model has 128"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_k": -1}, "top_k -1"),
    ],
)
def test_a_request_that_cannot_be_decoded_is_refused(changes: dict[str, object], said: str) -> None:
    good, bad = requests(2)
    with pytest.raises(ValueError, match=said):
        engine(policy()).generate([good, replace(bad, **changes)])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(MODELS))
def test_after_a_weight_update_it_samples_as_the_new_model(name: str) -> None:
    old, new = policy(name, seed=1), policy(name, seed=2)
    served = engine(old)
    stale = served.generate(requests(5))
    count = served.update_weights(export_tensors(new), version=7)
    assert count == len(new.state_dict())
    fresh = served.generate(requests(5))
    assert [sample.tokens for sample in fresh] == [sample.tokens for sample in engine(new).generate(requests(5))]
    assert [sample.tokens for sample in fresh] != [sample.tokens for sample in stale]
    assert {sample.weight_version for sample in stale} == {0}
    assert {sample.weight_version for sample in fresh} == {7}


def test_an_update_that_does_not_fit_changes_nothing() -> None:
    served = engine(policy(seed=1))
    before = {name: tensor.clone() for name, tensor in served.model.state_dict().items()}
    tensors = dict(export_tensors(policy(seed=2)))
    broken = {
        "unknown": {**tensors, "model.nobody.weight": torch.zeros(1)},
        "missing": {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"},
        "shape": {**tensors, "model.norm.weight": torch.zeros(3)},
        "tied": {**tensors, "lm_head.weight": torch.zeros_like(tensors["lm_head.weight"])},
    }
    for wrong in broken.values():
        with pytest.raises(ValueError, match="nothing was applied"):
            served.update_weights(wrong.items(), version=3)
        assert served.weight_version == 0
        for name, tensor in served.model.state_dict().items():
            assert torch.equal(tensor, before[name]), name
