from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from reference_trainer.config import ConfigError, LoraConfig, ModelConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.models.build import build_policy
from reference_trainer.models.critic import build_critic
from reference_trainer.models.lora import adapted_layers, add_adapters, is_adapter, without_adapters
from tests.reference_trainer.tiny import MODELS

IDS = torch.arange(20, 32).reshape(2, 6)
LORA = LoraConfig(rank=3, alpha=6.0)


def base(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return build_policy(ModelConfig(**MODELS[name]), seed=0, dtype=dtype)


def adapted(name: str, lora: LoraConfig = LORA, *, seed: int = 1, dtype: torch.dtype = torch.float32) -> Any:
    policy = base(name, dtype)
    add_adapters(policy, lora, seed=seed)
    return policy


def logits(policy: PreTrainedModel) -> torch.Tensor:
    return policy(input_ids=IDS, use_cache=False).logits


def state(policy: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


@pytest.mark.parametrize("name", list(MODELS))
def test_an_adapted_policy_starts_as_its_base_bit_by_bit_and_keeps_its_class(name: str) -> None:
    policy = adapted(name)
    assert type(policy) is type(base(name))
    assert not any(module.training for module in policy.modules())
    assert torch.equal(logits(policy), logits(base(name)))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_training_step_moves_every_adapter_and_nothing_else(name: str) -> None:
    policy = adapted(name)
    before = state(policy)
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr=0.01, eps=1e-20)
    for _ in range(2):  # the first step moves only B: the gradient of A is a product with B, which is 0
        optimizer.zero_grad()
        logits(policy).logsumexp(-1).mean().backward()
        optimizer.step()
    for key, value in policy.state_dict().items():
        assert torch.equal(value, before[key]) != is_adapter(key), key
    with torch.no_grad():
        assert not torch.equal(logits(policy), logits(base(name)))


@pytest.mark.parametrize("name", list(MODELS))
def test_all_linear_is_every_linear_layer_of_the_language_model_but_head_routing_and_vision(name: str) -> None:
    inside = "model.language_model." if name.endswith("vl") else "model."
    expected = {
        key
        for key, module in base(name).named_modules()
        if isinstance(module, torch.nn.Linear) and key.startswith(inside) and "shared_expert_gate" not in key
    }
    assert {key for key, _ in adapted_layers(adapted(name))} == expected
    assert any("down_proj" in key for key in expected)


def test_named_targets_alone_get_an_adapter_of_the_rank_and_the_scale() -> None:
    policy = adapted("qwen3", LoraConfig(rank=2, alpha=5.0, targets=("q_proj", "down_proj")))
    assert {key.rpartition(".")[2] for key, _ in adapted_layers(policy)} == {"q_proj", "down_proj"}
    for _, layer in adapted_layers(policy):
        assert layer.lora_A["default"].weight.shape[0] == layer.lora_B["default"].weight.shape[1] == 2
        assert layer.scaling["default"] == 2.5


def test_the_text_model_s_layers_are_meant_where_a_vision_tower_has_the_same_names() -> None:
    policy = adapted("gemma4-vl", LoraConfig(rank=2, targets=("q_proj",)))
    assert all("language_model" in key for key, _ in adapted_layers(policy))


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (("q_prj",), '"model.lora.targets" names "q_prj"; did you mean "q_proj"?'),
        (("lm_head",), '"model.lora.targets" names "lm_head"; known: '),
        ((), '"model.lora.targets" is empty'),
    ],
)
def test_targets_that_are_not_there_are_refused_with_the_nearest(targets: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adapted("qwen3", LoraConfig(rank=2, targets=targets))
    assert says in str(caught.value)


def test_the_seed_alone_decides_what_is_drawn() -> None:
    random_state = torch.get_rng_state()
    first, again, other = (adapted("qwen3", seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    drawn = [key for key in first if ".lora_A." in key]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_adapters_have_the_dtype_of_their_base(dtype: torch.dtype) -> None:
    assert {p.dtype for p in adapted("qwen3.5", dtype=dtype).parameters()} == {dtype}


def test_without_its_adapters_the_policy_is_the_base_and_afterwards_itself_again() -> None:
    policy = adapted("qwen3")
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if is_adapter(name):
                parameter.add_(0.1)
        moved = logits(policy)
        with without_adapters(policy):
            assert torch.equal(logits(policy), logits(base("qwen3")))
        assert torch.equal(logits(policy), moved)
    assert {name for name, p in policy.named_parameters() if p.requires_grad} == {
        name for name, _ in policy.named_parameters() if is_adapter(name)
    }


def test_a_drafter_is_trained_beside_the_adapters_and_gets_none() -> None:
    policy = base("qwen3")
    policy.mtp = torch.nn.Sequential(torch.nn.Linear(4, 4))
    add_adapters(policy, LORA, seed=0)
    assert all(parameter.requires_grad for parameter in policy.mtp.parameters())
    assert not any(key.startswith("mtp") for key, _ in adapted_layers(policy))


@pytest.mark.parametrize("name", list(MODELS))
def test_an_adapted_critic_takes_the_merged_policy_and_trains_its_value_head(name: str) -> None:
    policy = adapted(name, dtype=torch.float64)
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            if is_adapter(key):
                parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(3))
    critic = build_critic(ModelConfig(**MODELS[name], lora=LORA), seed=5, dtype=torch.float64)
    critic.start_from(policy)
    hidden = critic.backbone(input_ids=IDS).last_hidden_state
    torch.testing.assert_close(hidden, policy.model(input_ids=IDS).last_hidden_state, rtol=0, atol=1e-6)
    trained = {key for key, parameter in critic.named_parameters() if parameter.requires_grad}
    assert {"value_head.weight", "value_head.bias"} < trained
    assert all(key.startswith("value_head.") or is_adapter(key) for key in trained)
    before = copy.deepcopy(critic.state_dict())
    batch = lay_out([Row((0, 1, 2), (3, 4, 5)), Row((6, 7, 8, 9), (10, 11))], pad_id=256)
    torch.nn.init.ones_(critic.value_head.weight)
    critic(batch).square().mean().backward()
    moved = {key for key, parameter in critic.named_parameters() if parameter.grad is not None}
    assert moved == trained
    assert all(torch.equal(value, before[key]) for key, value in critic.state_dict().items() if key not in trained)
