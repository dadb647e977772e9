from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_trainer.config import ConfigError, ModelConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.models.build import build_policy
from reference_trainer.models.capabilities import read_capabilities, require_packable
from reference_trainer.models.critic import build_critic
from tests.reference_trainer.tiny import MODELS

CLASSES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3.5": "Qwen3_5ForCausalLM",
    "qwen3.5-moe": "Qwen3_5MoeForCausalLM",
    "qwen3.5-vl": "Qwen3_5ForConditionalGeneration",
    "gemma4": "Gemma4ForCausalLM",
    "gemma4-vl": "Gemma4ForConditionalGeneration",
    "llama": "LlamaForCausalLM",
}


def model_config(name: str, **keywords: Any) -> ModelConfig:
    spec = MODELS[name]
    return ModelConfig(**{**spec, "config": {**spec["config"], **keywords}})


@pytest.mark.parametrize("name", list(MODELS))
def test_the_policy_is_the_real_class_with_seeded_weights(name: str) -> None:
    random_state = torch.get_rng_state()
    first, again, other = (build_policy(model_config(name), seed=seed, dtype=torch.float32) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert type(first).__name__ == CLASSES[name]
    assert not first.training
    for key, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    assert any(not torch.equal(value, other.state_dict()[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize("name", list(MODELS))
def test_matrices_have_the_configured_deviation_and_ties_are_kept(name: str) -> None:
    policy = build_policy(model_config(name), seed=0, dtype=torch.float32)
    tied = policy.lm_head.weight is policy.get_input_embeddings().weight
    assert tied == policy.config.tie_word_embeddings == (name != "llama")
    for key, parameter in policy.named_parameters():
        if parameter.dim() >= 2 and parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), key
            assert parameter.mean().abs().item() < 0.01, key


def test_an_untied_head_is_a_matrix_of_its_own() -> None:
    policy = build_policy(model_config("qwen3", tie_word_embeddings=False), seed=0, dtype=torch.float32)
    assert policy.lm_head.weight is not policy.get_input_embeddings().weight
    assert not read_capabilities(policy).tied_head


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_policy_has_the_configured_dtype(dtype: torch.dtype) -> None:
    policy = build_policy(model_config("qwen3"), seed=0, dtype=dtype)
    assert {parameter.dtype for parameter in policy.parameters()} == {dtype}
    assert policy.lm_head.weight is policy.get_input_embeddings().weight


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_saved_is_in_the_dtype_and_rotary_frequencies_stay_in_float32(name: str, dtype: torch.dtype) -> None:
    policy, exact = (build_policy(model_config(name), seed=0, dtype=one) for one in (dtype, torch.float32))
    assert {value.dtype for value in policy.state_dict().values()} == {dtype}
    frequencies = {key: value for key, value in policy.named_buffers() if key.endswith("inv_freq")}
    assert frequencies
    for key, value in frequencies.items():
        assert torch.equal(value, dict(exact.named_buffers())[key]), key


def test_a_keyword_the_family_lacks_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r'unknown key "model.config.hiden_size" \(value 8\); did you mean "hidden_size"'
    ):
        build_policy(model_config("qwen3", hiden_size=8), seed=0, dtype=torch.float32)


@pytest.mark.parametrize(
    "keywords",
    [{"layer_types": ["no_such_attention"] * 2}, {"num_attention_heads": "many"}, {"hidden_act": "sine"}],
)
def test_keywords_that_make_no_model_are_a_configuration_error(keywords: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\.config does not make a Qwen3\w+: .+") as caught:
        build_policy(model_config("qwen3", **keywords), seed=0, dtype=torch.float32)
    assert "\n" not in str(caught.value)


def test_capabilities_are_read_from_the_layers_not_from_the_name() -> None:
    hybrid = build_policy(model_config("qwen3.5"), seed=0, dtype=torch.float32)
    assert read_capabilities(hybrid).linear_attention
    assert "linear-attention state" in read_capabilities(hybrid).why_not_packed
    with pytest.raises(ConfigError, match="Qwen3_5ForCausalLM can't train on packed samples"):
        require_packable(hybrid)

    all_full = build_policy(model_config("qwen3.5", layer_types=["full_attention"] * 2), seed=0, dtype=torch.float32)
    assert not read_capabilities(all_full).linear_attention
    assert read_capabilities(all_full).why_not_packed == ""
    require_packable(all_full)

    windowed = build_policy(model_config("gemma4"), seed=0, dtype=torch.float32)
    assert read_capabilities(windowed).sliding_window == 4
    assert read_capabilities(build_policy(model_config("qwen3"), seed=0, dtype=torch.float32)).sliding_window is None


@pytest.mark.parametrize("name", list(MODELS))
def test_packing_is_refused_exactly_where_it_is_wrong(name: str) -> None:
    """The claim is measured: a sample behind another one in a row, its positions starting again."""
    policy = build_policy(model_config(name), seed=0, dtype=torch.float64)
    first, second = torch.arange(5, 12), torch.arange(40, 47)
    alone = policy(input_ids=second[None]).logits[0]
    positions = torch.cat([torch.arange(7), torch.arange(7)])[None]
    packed = policy(input_ids=torch.cat([first, second])[None], position_ids=positions, use_cache=False).logits[0, 7:]
    wrong = (packed - alone).abs().max().item() > 1e-3
    assert wrong == bool(read_capabilities(policy).why_not_packed)


@pytest.mark.parametrize("name", list(MODELS))
def test_the_critic_starts_at_zero_and_takes_the_policy_backbone(name: str) -> None:
    policy = build_policy(model_config(name), seed=0, dtype=torch.float32)
    critic = build_critic(model_config(name), seed=5, dtype=torch.float32)
    batch = lay_out([Row((0, 1, 2), (3, 4, 5)), Row((6, 7, 8, 9), (10, 11))], pad_id=256)
    assert critic(batch).shape == (2, 6)
    assert critic(batch).abs().max() == 0
    critic.start_from(policy)
    for key, value in policy.model.state_dict().items():
        assert torch.equal(critic.backbone.state_dict()[key], value), key
    assert not {id(p) for p in critic.parameters()} & {id(p) for p in policy.parameters()}
