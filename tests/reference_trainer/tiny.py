"""Configurations of tiny models, for tests that build the real thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_trainer.config import TrainerConfig, load_config

_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"architecture": "qwen3", "config": {**_SHAPE, "tie_word_embeddings": True}},
    "qwen3.5": {
        "architecture": "qwen3.5",
        "config": {
            **_SHAPE,
            "tie_word_embeddings": True,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "layer_types": ["linear_attention", "full_attention"],
        },
    },
    "gemma4": {
        "architecture": "gemma4",
        "config": {
            **_SHAPE,
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 8,
            "sliding_window": 4,  # shorter than the sequences, so that the window matters
            "layer_types": ["sliding_attention", "full_attention"],
        },
    },
    "llama": {"architecture": "llama", "config": _SHAPE},
}
_MOE = {key: value for key, value in MODELS["qwen3.5"]["config"].items() if key != "intermediate_size"}
MODELS["qwen3.5-moe"] = {
    "architecture": "qwen3.5-moe",
    "config": {
        **_MOE,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}
MODELS["qwen3.5-vl"] = {
    "architecture": "qwen3.5-vl",
    "config": {
        "text_config": {
            **MODELS["qwen3.5"]["config"],
            # four rotated pairs of a head: two turn with time, one with the row and one with the column of an image
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            },
        },
        "vision_config": {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "patch_size": 4,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": 16,
        },
        "tie_word_embeddings": True,
    },
}
MODELS["gemma4-vl"] = {
    "architecture": "gemma4-vl",
    "config": {
        "text_config": MODELS["gemma4"]["config"],
        "vision_config": {
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 16,
        },
    },
}


def settings(model: str = "qwen3", algorithm: str = "grpo", /, **sections: Any) -> dict[str, Any]:
    """A whole small run; a mapping given for a section is merged into it."""
    base: dict[str, Any] = {
        "model": MODELS[model],
        "algorithm": {"advantage": {"ppo": "gae"}.get(algorithm, algorithm), "group_size": 2},
        "task": {"prompt": "expression", "prompts_per_step": 4, "eval_prompts": 4},
        "rollout": {"max_tokens": 3},
        "batch": {"mini_batch": 4, "micro_batch": 2},
        "warm_start": {"steps": 1, "batch": 4},
        "steps": 2,
    }
    for name, value in sections.items():
        base[name] = {**base.get(name, {}), **value} if isinstance(value, Mapping) else value
    return base


def config(model: str = "qwen3", algorithm: str = "grpo", /, **sections: Any) -> TrainerConfig:
    return load_config(settings(model, algorithm, **sections))
