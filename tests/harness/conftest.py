"""A cell small enough to be built and trained in a test."""

from __future__ import annotations

import pytest

from harness.matrix.cell import Cell

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="session")
def tiny_cell() -> Cell:
    return Cell(
        subject="reference",
        hardware="cpu",
        model="qwen3",
        algorithm="grpo",
        mode="sync",
        engine="native",
        topology="dp1",
        settings={
            "model": {"architecture": "qwen3", "config": TINY},
            "algorithm": {"advantage": "grpo", "group_size": 4},
            "task": {"prompt": "expression", "prompts_per_step": 4, "eval_prompts": 4},
            "rollout": {"max_tokens": 4},
            "warm_start": {"steps": 2, "batch": 4},
            "batch": {"mini_batch": 8, "micro_batch": 4},
        },
    )
