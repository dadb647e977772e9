"""Published models: their parameter totals, by the real classes on the meta device and by arithmetic of our own.

`TOTALS` says of each what its makers publish. "name" is no more than the number in the name: it is rounded and, for
Qwen3.5 and the two smallest Gemma4, counts towers that are left out here, so it is held within 10 % at best. "quoted"
is a total of the language model, to three digits, as secondary pages quote it. The exact figures are of regression,
which nobody publishes: what holds them is the closed form below. The last column is an independent trace of one AdamW
step in bfloat16 at full size, in GiB: weights, gradients and two moments, 8 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from harness.matrix.load import MATRICES, load_catalogue
from reference_trainer.config import ModelConfig
from reference_trainer.models.configurations import transformers_config
from reference_trainer.models.families import FAMILIES

MODELS = load_catalogue(MATRICES).models


@dataclass(frozen=True)
class Total:
    exact: int
    published: float
    """In billions."""
    stated: str
    """Where: "name" or "quoted"."""
    adamw_gib: float


TOTALS = {
    "qwen3.5-0.8b": Total(752_393_024, 0.8, "name", 5.61),
    "qwen3.5-2b": Total(1_881_825_088, 2.0, "name", 14.02),
    "qwen3.5-4b": Total(4_205_751_296, 4.0, "name", 31.34),
    "qwen3.5-9b": Total(8_953_803_264, 9.0, "name", 66.71),
    "qwen3.5-27b": Total(26_895_998_464, 27.0, "name", 200.4),
    "qwen3.5-35b-a3b": Total(34_660_610_688, 35.0, "name", 258.2),
    "gemma4-e2b": Total(4_628_569_344, 5.1, "name", 34.49),  # 5.1 with embeddings and both towers
    "gemma4-e4b": Total(7_463_013_376, 8.0, "name", 55.60),  # 8 with embeddings and both towers
    "gemma4-26b-a4b": Total(25_233_141_760, 25.2, "quoted", 188.0),
    "gemma4-31b": Total(30_697_345_280, 30.7, "quoted", 228.7),
}
TOLERANCE = {"name": 0.10, "quoted": 0.002}


def on_meta(name: str, size: str) -> PreTrainedModel:
    spec = MODELS[name].sizes[size]
    config = transformers_config(ModelConfig(**spec))
    with torch.device("meta"):
        return FAMILIES[spec["architecture"]].model_class(config)


def built(name: str, size: str) -> int:
    return sum(parameter.numel() for parameter in on_meta(name, size).parameters())


def qwen3_5(c: Mapping[str, Any]) -> int:
    """Three gated delta nets to one gated full attention; a dense MLP, or experts with a shared one."""
    h, d = c["hidden_size"], c["head_dim"]
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads, value = c["linear_num_value_heads"], c["linear_num_value_heads"] * c["linear_value_head_dim"]
    query, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    full = h * 2 * query + 2 * h * kv + query * h + 2 * d  # the query projection brings a gate of its own width
    linear = h * (2 * key + value) + 4 * (2 * key + value)  # in_proj_qkv and the convolution of width 4 over it
    linear += h * value + 2 * h * heads + value * h  # z, a and b, out
    linear += 2 * heads + c["linear_value_head_dim"]  # decay, its bias, the gated norm
    if "num_experts" in c:
        mlp = c["num_experts"] * (3 * h * c["moe_intermediate_size"] + h)  # experts and router
        mlp += 3 * h * c["shared_expert_intermediate_size"] + h  # the shared expert and its gate
    else:
        mlp = 3 * h * c["intermediate_size"]
    layers = c["num_hidden_layers"]
    embeddings = c["vocab_size"] * h * (1 if c["tie_word_embeddings"] else 2)
    return layers // 4 * (3 * linear + full) + layers * (mlp + 2 * h) + h + embeddings


def gemma4(c: Mapping[str, Any]) -> int:
    """Windowed and full layers with heads of their own size; the last ones may have neither keys nor values."""
    h, count, p = c["hidden_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]
    types = c.get("layer_types") or (["sliding_attention"] * 5 + ["full_attention"]) * (count // 6)
    first_shared = count - c.get("num_kv_shared_layers", 0)
    total = c["vocab_size"] * h + h
    for index, kind in enumerate(types):
        full, shared = kind == "full_attention", index >= first_shared
        d = c["global_head_dim"] if full else c["head_dim"]
        kv_heads = c["num_key_value_heads"]
        if full and c.get("attention_k_eq_v"):
            kv_heads = c["num_global_key_value_heads"]
        total += 2 * h * c["num_attention_heads"] * d + d  # query and output, and the query's norm
        if not shared:
            total += h * kv_heads * d + d  # keys and their norm; the norm of the values has no weight
            total += 0 if full and c.get("attention_k_eq_v") else h * kv_heads * d
        total += 3 * h * c["intermediate_size"] * (2 if shared and c.get("use_double_wide_mlp") else 1)
        total += 4 * h  # norms before and after attention and MLP
        if c.get("enable_moe_block"):
            total += c["num_experts"] * (3 * h * c["moe_intermediate_size"] + h + 1) + h  # experts, router, its scales
            total += 3 * h
        total += 2 * h * p + h if p else 0
    if p:
        total += c["vocab_size"] * count * p + h * count * p + p
    return total


def test_every_full_size_has_a_total_here() -> None:
    assert {name for name, entry in MODELS.items() if "full" in entry.sizes} == set(TOTALS)


@pytest.mark.parametrize("name", list(TOTALS))
def test_the_real_class_has_the_closed_form_s_total_and_it_fits_what_is_published(name: str) -> None:
    spec, total = MODELS[name].sizes["full"], TOTALS[name]
    closed_form = gemma4 if spec["architecture"] == "gemma4" else qwen3_5
    assert built(name, "full") == closed_form(spec["config"]) == total.exact
    assert total.exact / 1e9 == pytest.approx(total.published, rel=TOLERANCE[total.stated])
    assert total.exact * 8 / 2**30 == pytest.approx(total.adamw_gib, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "published"), [("qwen3.5", "qwen3.5-9b"), ("qwen3.5-moe", "qwen3.5-35b-a3b"), ("gemma4", "gemma4-e4b")]
)
def test_shapes_are_the_published_widths_on_few_layers(name: str, published: str) -> None:
    shapes, full = MODELS[name].sizes["shapes"]["config"], MODELS[published].sizes["full"]["config"]
    differ = {key for key in shapes.keys() | full.keys() if shapes.get(key) != full.get(key)}
    assert differ <= {"num_hidden_layers", "num_kv_shared_layers", "layer_types"}
    assert 2 <= shapes["num_hidden_layers"] <= 4
    model = on_meta(name, "shapes")
    assert set(model.config.layer_types) == set(on_meta(published, "full").config.layer_types)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_the_shapes_of_the_dense_models_have_the_closed_form_s_total(name: str) -> None:
    c = MODELS[name].sizes["shapes"]["config"]
    h, d = c["hidden_size"], c["head_dim"]
    norms = 2 * h + (2 * d if name == "qwen3" else 0)
    one = 2 * h * c["num_attention_heads"] * d + 2 * h * c["num_key_value_heads"] * d + 3 * h * c["intermediate_size"]
    assert built(name, "shapes") == c["num_hidden_layers"] * (one + norms) + h + 2 * c["vocab_size"] * h


@pytest.mark.parametrize(
    "name", [name for name, entry in MODELS.items() if "local" in entry.sizes and not entry.extends]
)
def test_a_local_size_says_the_architecture_and_leaves_the_rest_to_the_checkpoint(name: str) -> None:
    assert MODELS[name].sizes["local"] == {"architecture": name}
    assert name in FAMILIES
