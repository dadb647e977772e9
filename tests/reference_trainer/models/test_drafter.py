from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma4AssistantForCausalLM, PreTrainedModel

from reference_trainer.algorithms.mtp import mtp_loss
from reference_trainer.config import ConfigError, DrafterConfig, ModelConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.data.tokenizer import PAD_ID
from reference_trainer.models.build import build_policy
from reference_trainer.models.checkpoint import save_policy
from reference_trainer.models.drafter import drafter_log_probs, drafter_of
from reference_trainer.models.outputs import last_hidden_states
from reference_trainer.models.rewinding import RewindableCache
from reference_trainer.rollout.kv_cache import roomy_cache
from reference_trainer.weights.export import export_names
from tests.reference_trainer.tiny import MODELS

ROWS = [
    Row((1, 2, 3), (4, 5, 6, 7, 8, 9)),
    Row((10, 11), (12,)),
    Row((13,), (14, 15, 16)),
    Row((17, 18, 19, 20, 21, 22, 23), ()),
]


def kind_of(name: str) -> Any:
    return "assistant" if name.startswith("gemma4") else "mtp"


def drafted(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **drafter: Any) -> PreTrainedModel:
    settings = {"kind": kind_of(name), **drafter}
    return build_policy(ModelConfig(**{**MODELS[name], "init_std": 0.3, "drafter": settings}), seed=seed, dtype=dtype)


def plain(name: str, **settings: Any) -> PreTrainedModel:
    return build_policy(ModelConfig(**{**MODELS[name], "init_std": 0.3, **settings}), seed=0, dtype=torch.float64)


@pytest.mark.parametrize("name", list(MODELS))
def test_the_policy_is_the_same_with_and_without_and_the_seed_alone_decides_the_drafter(name: str) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    policy, again, bare = drafted(name), drafted(name), plain(name)
    assert torch.equal(before, torch.random.get_rng_state())
    own = bare.state_dict()
    for key, tensor in policy.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
        assert key in own or key.split(".")[0] == kind_of(name), key
        assert key not in own or torch.equal(tensor, own[key]), key
    assert set(own) <= set(policy.state_dict())
    assert drafter_of(bare) is None
    assert not [key for key in own if key.startswith(("mtp", "assistant"))]


@pytest.mark.parametrize("name", [name for name in MODELS if kind_of(name) == "mtp"])
def test_mtp_has_the_names_of_a_checkpoint_and_no_copy_of_embedding_or_head(name: str) -> None:
    names = {key for key in drafted(name, layers=2).state_dict() if key.startswith("mtp.")}
    assert {"mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight"} <= names
    assert {"mtp.pre_fc_norm_embedding.weight", "mtp.layers.1.self_attn.q_proj.weight"} <= names
    assert "mtp.layers.2.self_attn.q_proj.weight" not in names
    assert not [key for key in names if "embed_tokens" in key or "lm_head" in key or "linear_attn" in key]
    assert names <= set(export_names(drafted(name, layers=2)))


@pytest.mark.parametrize(
    ("name", "drafter", "said"),
    [
        ("gemma4", {"kind": "mtp"}, 'model.drafter.kind "mtp" does not suit .*; use "assistant"'),
        ("qwen3.5", {"kind": "assistant"}, 'model.drafter.kind "assistant" does not suit .*; use "mtp"'),
        ("qwen3", {"kind": "mtp", "config": {"hidden_size": 8}}, "leave model.drafter.config out"),
        ("gemma4", {"kind": "assistant", "config": {"hiden_size": 8}}, "hiden_size.*hidden_size"),
        ("gemma4", {"kind": "assistant", "config": {"hidden_size_per_layer_input": 4}}, "does not make an assistant"),
    ],
)
def test_a_drafter_that_does_not_suit_is_refused_with_the_remedy(name: str, drafter: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plain(name, drafter=drafter)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", list(MODELS))
def test_what_is_trained_is_what_drafts(name: str, layers: int, side: Any) -> None:
    """One pass over padded rows gives the log-probs of the first draft at each place, made one row after another."""
    policy = drafted(name, layers=layers)
    drafter = drafter_of(policy)
    assert drafter is not None
    batch = lay_out(ROWS, pad_id=PAD_ID, side=side, extra_padding=2)
    with torch.no_grad():
        hidden = last_hidden_states(policy.model, batch)
        log_probs, predictable = drafter_log_probs(policy, hidden, batch, temperature=0.7)
        assert predictable.tolist() == [
            [True] * 6,
            [True] + [False] * 5,
            [False, True, True] + [False] * 3,
            [False] * 6,
        ]
        for index, row in enumerate(ROWS):
            tokens = torch.tensor([[*row.prompt, *row.response]])
            cache = RewindableCache(roomy_cache(policy.config, capacity=32))
            drafting = drafter.drafting(policy)
            for place in range(1, tokens.shape[1] - 1):  # after each pair (h[place - 1], x[place])
                start = cache.length
                cache.remember()
                read = policy.model(
                    input_ids=tokens[:, start:place], past_key_values=cache.cache, use_cache=True
                ).last_hidden_state
                cache.keep(processed=place - start, kept=place - start)
                drafting.settle(tokens[:, start : place + 1], read, cache.cache)
                logits = drafting.propose(None)
                drafting.propose(logits.argmax(-1))  # void by the next call of settle
                at = place + 1 - len(row.prompt)
                if at >= 0:
                    expected = (logits[0] / 0.7).log_softmax(-1)[row.response[at]]
                    assert log_probs[index, at].item() == pytest.approx(
                        expected.item(),
                        # the library's linear-attention state is float32, and left padding moves its chunks
                        abs=2e-3 if name.startswith("qwen3.5") else 1e-6,
                    )


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gemma4", "gemma4-vl"])
def test_the_loss_trains_the_drafter_and_nothing_else(name: str) -> None:
    policy = drafted(name)
    batch = lay_out(ROWS, pad_id=PAD_ID)
    hidden = last_hidden_states(policy.model, batch)
    log_probs, predictable = drafter_log_probs(policy, hidden, batch)
    mtp_loss(log_probs, predictable).sum().backward()
    reached = {key for key, parameter in policy.named_parameters() if parameter.grad is not None}
    assert reached
    assert all(key.split(".")[0] == kind_of(name) for key in reached)
    # the assistant's own state is read from its second draft on only
    unreached = {key for key, _ in policy.named_parameters() if key.split(".")[0] == kind_of(name)} - reached
    assert unreached == ({"assistant.post_projection.weight"} if kind_of(name) == "assistant" else set())


@pytest.mark.parametrize("name", ["qwen3", "gemma4"])
def test_nothing_to_predict_gives_zeros(name: str) -> None:
    policy = drafted(name)
    for rows in ([Row((1,), (2,))], [Row((1, 2), ())]):
        batch = lay_out(rows, pad_id=PAD_ID)
        log_probs, predictable = drafter_log_probs(policy, last_hidden_states(policy.model, batch), batch)
        assert not predictable.any()
        assert not log_probs.any()
    with pytest.raises(ValueError, match="no drafter"):
        drafter_log_probs(plain(name), torch.zeros(1, 2, 32), batch)


def test_the_assistant_computes_what_the_library_s_own_forward_pass_does() -> None:
    """For one query, which is all that the class takes, over no more tokens than its window shows."""
    policy = drafted("gemma4", layers=2)
    assert isinstance(policy.assistant, Gemma4AssistantForCausalLM)
    assistant: Any = policy.assistant
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        read = policy.model(input_ids=tokens[:, :3], use_cache=False, return_shared_kv_states=True)
        cache = roomy_cache(policy.config, capacity=8)
        policy.model(input_ids=tokens[:, :3], past_key_values=cache, use_cache=True)
        drafting = assistant.drafting(policy)
        drafting.settle(tokens, read.last_hidden_state, cache)
        last, state = tokens[:, 3:], read.last_hidden_state[:, 2:]
        for draft in (None, torch.tensor([9]), torch.tensor([10])):
            last = last if draft is None else draft[:, None]
            expected = assistant(
                inputs_embeds=torch.cat([policy.get_input_embeddings()(last), state], dim=-1),
                position_ids=torch.tensor([[3]]),
                shared_kv_states=read.shared_kv_states,
            )
            torch.testing.assert_close(drafting.propose(draft), expected.logits[:, -1])
            state = expected.last_hidden_state


@pytest.mark.parametrize("name", list(MODELS))
def test_a_drafter_survives_save_and_load_and_only_where_it_is_asked_for(name: str, tmp_path: Path) -> None:
    policy = drafted(name, seed=3, layers=2)
    save_policy(policy, tmp_path)
    settings = {"architecture": MODELS[name]["architecture"], "checkpoint": str(tmp_path)}
    asked = ModelConfig(**settings, drafter=DrafterConfig(kind=kind_of(name), layers=2))
    loaded = build_policy(asked, seed=9, dtype=torch.float64).state_dict()
    assert loaded.keys() == policy.state_dict().keys()
    for key, tensor in policy.state_dict().items():
        assert torch.equal(tensor, loaded[key]), key
    # A configuration on disk may count layers as well: what is built is what model.drafter says.
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**written, "mtp_num_hidden_layers": 2, "num_mtp_layers": 2}))
    bare = build_policy(ModelConfig(**settings), seed=9, dtype=torch.float64)
    assert drafter_of(bare) is None
    assert not [key for key in bare.state_dict() if key.startswith(("mtp", "assistant"))]
