"""What is sent is the plain architecture: a model built without adapters takes it and computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from reference_trainer.config import LoraConfig, ModelConfig
from reference_trainer.models.build import build_policy
from reference_trainer.models.lora import adapted_layers, add_adapters, is_adapter
from reference_trainer.weights.apply import WeightMismatch, apply_tensors
from reference_trainer.weights.export import export_names, export_tensors
from tests.reference_trainer.tiny import MODELS

IDS = torch.arange(20, 32).reshape(2, 6)


def plain(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    return build_policy(ModelConfig(**MODELS[name]), seed=seed, dtype=dtype)


def moved(name: str, *, dtype: torch.dtype = torch.float32) -> Any:
    """A policy whose adapters are not at their start."""
    policy = plain(name, dtype=dtype)
    add_adapters(policy, LoraConfig(rank=3, alpha=6.0), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            if is_adapter(key):
                parameter.normal_(0.0, 0.1, generator=generator)
    return policy


@pytest.mark.parametrize("name", list(MODELS))
@torch.no_grad()
def test_an_engine_without_adapters_takes_an_adapted_policy_and_computes_the_same(name: str) -> None:
    policy, engine = moved(name, dtype=torch.float64), plain(name, seed=9, dtype=torch.float64)
    assert export_names(policy) == export_names(engine)
    assert apply_tensors(engine, export_tensors(policy)) == len(export_names(engine))
    expected = policy(input_ids=IDS, use_cache=False).logits
    # linear attention and routing are float32 inside, whatever the model's dtype
    torch.testing.assert_close(engine(input_ids=IDS, use_cache=False).logits, expected, rtol=0, atol=2e-5)
    unmerged = plain(name, dtype=torch.float64)(input_ids=IDS, use_cache=False).logits
    assert (unmerged - expected).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merged_weight_is_the_formula_in_float32_rounded_once(dtype: torch.dtype) -> None:
    policy = moved("qwen3", dtype=dtype)
    sent = dict(export_tensors(policy))
    for path, layer in adapted_layers(policy):
        weight, a, b = (
            tensor.detach().double().numpy()
            for tensor in (layer.base_layer.weight, layer.lora_A["default"].weight, layer.lora_B["default"].weight)
        )
        exact = torch.from_numpy(weight + 6.0 / 3 * (b @ a))
        assert sent[f"{path}.weight"].dtype == dtype
        # float32: a sum of rank + 1 = 4 terms below 1; bfloat16: half a unit in the last place of the value
        bound = 1e-6 + (exact.abs() * 2**-8 if dtype == torch.bfloat16 else 0)
        assert ((sent[f"{path}.weight"].double() - exact).abs() <= bound).all()


def test_merging_leaves_the_trainer_s_base_as_it_is_and_what_was_sent_stays_valid() -> None:
    policy = moved("qwen3")
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    sent = list(export_tensors(policy))
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())
    copies = [tensor.clone() for _, tensor in sent]
    list(export_tensors(policy))
    assert all(torch.equal(tensor, kept) for (_, tensor), kept in zip(sent, copies, strict=True))
    merged = {f"{path}.weight" for path, _ in adapted_layers(policy)}
    own = {tensor.data_ptr() for tensor in policy.state_dict().values()}
    assert all((tensor.data_ptr() in own) != (name in merged) for name, tensor in sent)


def test_nothing_of_an_adapter_is_named_and_a_bias_keeps_its_name() -> None:
    policy = plain("qwen3")
    policy.model.layers[0].self_attn.q_proj.bias = nn.Parameter(torch.full((32,), 7.0))
    expected = export_names(policy)
    add_adapters(policy, LoraConfig(rank=2), seed=0)
    assert export_names(policy) == expected
    assert not [name for name in expected if "lora" in name or "base_layer" in name]
    assert torch.equal(dict(export_tensors(policy))["model.layers.0.self_attn.q_proj.bias"], torch.full((32,), 7.0))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "llama"])
def test_a_tied_head_is_sent_under_both_names(name: str) -> None:
    sent = dict(export_tensors(moved(name)))
    (embedding,) = [key for key in sent if key.endswith("embed_tokens.weight")]
    assert torch.equal(sent["lm_head.weight"], sent[embedding])


def test_buffers_are_sent() -> None:
    policy = plain("gemma4")
    policy.model.layers[1].layer_scalar.fill_(0.5)
    engine = plain("gemma4", seed=3)
    apply_tensors(engine, export_tensors(policy))
    assert engine.model.layers[1].layer_scalar.item() == 0.5


@pytest.mark.parametrize("attribute", ["mtp", "assistant"])
def test_a_drafter_is_sent_only_where_it_is_asked_for(attribute: str) -> None:
    policy = moved("qwen3")
    names = export_names(policy)
    policy.add_module(attribute, nn.Linear(4, 4))
    assert export_names(policy, drafter=False) == names
    assert set(export_names(policy)) - set(names) == {f"{attribute}.weight", f"{attribute}.bias"}
    apply_tensors(plain("qwen3"), export_tensors(policy, drafter=False))
    with pytest.raises(WeightMismatch, match=f"unknown '{attribute}.bias'"):
        apply_tensors(plain("qwen3"), export_tensors(policy))
