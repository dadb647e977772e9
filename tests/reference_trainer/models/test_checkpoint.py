from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from reference_trainer.config import ConfigError, LoraConfig, ModelConfig
from reference_trainer.models.build import build_policy, transformers_config
from reference_trainer.models.checkpoint import load_drafter, load_policy, save_policy
from reference_trainer.models.critic import build_critic
from reference_trainer.models.lora import add_adapters, is_adapter
from reference_trainer.weights.export import export_names, export_tensors
from tests.reference_trainer.tiny import MODELS

IDS = torch.arange(20, 32).reshape(2, 6)
WEIGHTS = "model.safetensors"


def built(name: str = "qwen3", *, seed: int = 1, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    spec = MODELS[name]
    config = {**spec["config"], **changes}
    return build_policy(ModelConfig(**{**spec, "config": config}), seed=seed, dtype=dtype)


def local(folder: Path, name: str = "qwen3") -> ModelConfig:
    return ModelConfig(architecture=MODELS[name]["architecture"], checkpoint=str(folder))


class Drafter(nn.Module):
    """Shares the policy's embeddings, as a real one does, and has a layer and a buffer of its own."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.embed_tokens = policy.get_input_embeddings()
        self.fc = nn.Linear(8, 4)
        self.register_buffer("steps", torch.ones(2))


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_saved_is_loaded_bit_by_bit_with_ties_and_computes_the_same(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    policy = built(name, dtype=dtype)
    save_policy(policy, tmp_path)
    loaded = build_policy(local(tmp_path, name), seed=99, dtype=dtype)
    assert type(loaded) is type(policy)
    assert not loaded.training
    assert export_names(loaded) == export_names(policy)
    again = dict(export_tensors(loaded))
    for key, tensor in export_tensors(policy):
        assert again[key].dtype == tensor.dtype
        assert torch.equal(again[key], tensor), key
    for model in (policy, loaded):
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert tied == (name != "llama")
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=IDS).logits, policy(input_ids=IDS).logits)


def test_loading_leaves_the_global_random_state_alone_and_takes_another_dtype(tmp_path: Path) -> None:
    save_policy(built(dtype=torch.float32), tmp_path)
    random_state = torch.get_rng_state()
    loaded = load_policy(local(tmp_path), dtype=torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", list(MODELS))
def test_adapters_are_saved_merged(name: str, tmp_path: Path) -> None:
    policy = built(name)
    add_adapters(policy, LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            if is_adapter(key):
                parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(0))
    save_policy(policy, tmp_path)
    loaded = dict(export_tensors(load_policy(local(tmp_path, name), dtype=torch.float32)))
    for key, tensor in export_tensors(policy):
        assert torch.equal(loaded[key], tensor), key


@pytest.mark.parametrize("attribute", ["mtp", "assistant"])
def test_a_drafter_lies_in_the_same_file_and_comes_back_bit_by_bit(attribute: str, tmp_path: Path) -> None:
    policy = built("qwen3.5")
    policy.add_module(attribute, Drafter(policy))
    save_policy(policy, tmp_path)
    with safe_open(tmp_path / WEIGHTS, framework="pt") as file:
        assert {f"{attribute}.fc.weight", f"{attribute}.steps", f"{attribute}.embed_tokens.weight"} <= set(file.keys())
    loaded = load_policy(local(tmp_path, "qwen3.5"), dtype=torch.float32)
    assert not hasattr(loaded, attribute)
    loaded.add_module(attribute, Drafter(loaded))
    loaded.get_submodule(attribute).steps.zero_()
    assert load_drafter(loaded, tmp_path)
    again = dict(export_tensors(loaded))
    for key, tensor in export_tensors(policy):
        assert torch.equal(again[key], tensor), key
    assert loaded.get_submodule(attribute).embed_tokens is loaded.get_input_embeddings()


def test_a_folder_without_a_drafter_leaves_it_as_it_was_drawn(tmp_path: Path) -> None:
    policy = built()
    save_policy(policy, tmp_path)
    policy.add_module("mtp", Drafter(policy))
    before = policy.mtp.fc.weight.clone()
    assert not load_drafter(policy, tmp_path)
    assert torch.equal(policy.mtp.fc.weight, before)


def test_another_drafter_is_refused(tmp_path: Path) -> None:
    policy = built()
    policy.add_module("mtp", Drafter(policy))
    save_policy(policy, tmp_path)
    policy.mtp.fc = nn.Linear(8, 5)
    with pytest.raises(ConfigError, match=r"the drafter in .* is not the one .*mtp\.fc\.bias differs"):
        load_drafter(policy, tmp_path)


def test_saving_does_not_change_the_policy(tmp_path: Path) -> None:
    policy = built("gemma4-vl")
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    save_policy(policy, tmp_path)
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())


def test_the_critic_starts_from_the_checkpoint_s_backbone(tmp_path: Path) -> None:
    policy = built()
    save_policy(policy, tmp_path)
    critic = build_critic(local(tmp_path), seed=0, dtype=torch.float32)
    assert torch.equal(critic.backbone.embed_tokens.weight, policy.get_input_embeddings().weight)


def test_the_checkpoint_s_own_configuration_decides_the_sizes(tmp_path: Path) -> None:
    save_policy(built(vocab_size=400), tmp_path)
    config = transformers_config(local(tmp_path))
    assert (config.vocab_size, config.hidden_size) == (400, 32)


@pytest.mark.parametrize(
    ("saved", "asked", "says"),
    [
        ("qwen3", "llama", r'holds "qwen3" \(Qwen3ForCausalLM\), not the "llama" that'),
        ("qwen3.5-vl", "qwen3.5", r'holds "qwen3.5-vl" \(Qwen3_5ForConditionalGeneration\), not the "qwen3.5"'),
        ("qwen3.5", "qwen3.5-moe", r'holds "qwen3.5" \(Qwen3_5ForCausalLM\), not the "qwen3.5-moe"'),
    ],
)
def test_a_checkpoint_of_another_architecture_is_told_by_its_name(
    saved: str, asked: str, says: str, tmp_path: Path
) -> None:
    save_policy(built(saved), tmp_path)
    with pytest.raises(ConfigError, match=says):
        load_policy(local(tmp_path, asked), dtype=torch.float32)


def _config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return apply


def _tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return apply


def _cut_short(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def _only_pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json can't be read: "),
        (lambda folder: (folder / "config.json").write_text("[]"), "holds a list; it should be a mapping"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"), "config.json can't be read: "),
        (_config(lambda config: config.update(architectures=["GPT2LMHeadModel"])), "holds a GPT2LMHeadModel, which"),
        (_config(lambda config: config.update(hidden_size="wide")), "does not make a Qwen3Config: "),
        (_config(lambda config: config.update(quantization_config={"bits": 4})), "is quantised"),
        (_config(lambda config: config.update(vocab_size=300)), "a vocabulary of 300 ids and the tokenizer has 320"),
        (_config(lambda config: config.update(hidden_size=48)), "can't be read|has other shapes of"),
        (lambda folder: (folder / WEIGHTS).unlink(), "has no model.safetensors"),
        (_only_pickled, r"has pickled weights only \(pytorch_model.bin\), which are never read; convert"),
        (_cut_short, "can't be read: "),
        (_tensors(lambda tensors: tensors.pop(NORM)), f"lacks {NORM}"),
        (_tensors(lambda tensors: tensors.update({"model.extra": torch.ones(1)})), "has unknown model.extra"),
        (_tensors(lambda tensors: tensors.update({NORM: torch.ones(3)})), "can't be read|has other shapes of"),
    ],
)
def test_a_folder_that_can_t_be_used_is_refused_in_one_sentence(
    damage: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    save_policy(built(), tmp_path)
    damage(tmp_path)
    with pytest.raises(ConfigError, match=says) as caught:
        load_policy(local(tmp_path), dtype=torch.float32)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is no folder"):
        build_policy(local(tmp_path / "nowhere"), seed=0, dtype=torch.float32)


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    save_policy(built(), tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    _config(lambda config: config.update(auto_map={"AutoModelForCausalLM": "evil.Evil"}))(tmp_path)
    load_policy(local(tmp_path), dtype=torch.float32)


def test_a_checkpoint_without_its_class_s_name_is_known_by_its_model_type(tmp_path: Path) -> None:
    save_policy(built(), tmp_path)
    _config(lambda config: config.pop("architectures"))(tmp_path)
    load_policy(local(tmp_path), dtype=torch.float32)


def test_the_ids_of_an_image_are_the_tokenizer_s(tmp_path: Path) -> None:
    policy = built("qwen3.5-vl")
    expected = policy.config.image_token_id
    save_policy(policy, tmp_path)
    _config(lambda config: config.update(image_token_id=7))(tmp_path)
    assert load_policy(local(tmp_path, "qwen3.5-vl"), dtype=torch.float32).config.image_token_id == expected
