from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.config import ModelConfig
from reference_trainer.data.layout import Row, lay_out
from reference_trainer.data.padding import Side
from reference_trainer.models.build import build_policy
from reference_trainer.models.capabilities import read_capabilities
from reference_trainer.models.critic import build_critic
from reference_trainer.trainers.forward import response_log_probs, response_values
from tests.reference_trainer.tiny import MODELS

TOKENS = st.integers(0, 255)
ROWS = st.lists(
    st.builds(Row, st.lists(TOKENS, min_size=1, max_size=5), st.lists(TOKENS, max_size=4), st.just(())), max_size=4
)


@given(rows=ROWS, side=st.sampled_from(["left", "right"]), extra=st.integers(0, 3))
def test_each_response_token_is_predicted_by_the_column_before_it(rows: list[Row], side: Side, extra: int) -> None:
    batch = lay_out(rows, pad_id=256, side=side, extra_padding=extra)
    assert batch.present.shape == batch.labels.shape == batch.predictor.shape
    assert batch.present.shape == (len(rows), max((len(response) for _, response, _ in rows), default=0))
    for index, (prompt, response, _) in enumerate(rows):
        assert int(batch.attention_mask[index].sum()) == len(prompt) + len(response)
        assert batch.input_ids[index][batch.attention_mask[index].bool()].tolist() == [*prompt, *response]
        assert int(batch.present[index].sum()) == len(response)
        for t, token in enumerate(response):
            column = int(batch.predictor[index, t])
            assert batch.labels[index, t] == token
            assert batch.input_ids[index, column + 1] == token
            assert batch.position_ids[index, column] == len(prompt) - 1 + t


def test_an_empty_prompt_is_refused_by_row() -> None:
    with pytest.raises(ValueError, match="row 1 has an empty prompt"):
        lay_out([Row([1], [2]), Row([], [2])], pad_id=0)


LAID_OUT = [
    Row((3, 4, 5), (50, 51, 52, 53)),
    Row((6, 7, 8, 9, 10, 11), (60,)),
    Row((12,), ()),
    Row((13, 14), (70, 71)),
]


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("extra_padding", [0, 9])
def test_log_probs_and_values_do_not_depend_on_the_layout(name: str, side: Side, extra_padding: int) -> None:
    model = ModelConfig(**MODELS[name])
    policy = build_policy(model, seed=0, dtype=torch.float64)
    critic = build_critic(model, seed=0, dtype=torch.float64)
    critic.value_head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    batch = lay_out(LAID_OUT, pad_id=256, side=side, extra_padding=extra_padding)
    with torch.no_grad():
        log_probs, entropies = response_log_probs(policy, batch, temperature=0.8)
        values = response_values(critic, batch)
        for index, (prompt, response, _) in enumerate(LAID_OUT):
            count = len(response)
            logits = policy(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / 0.8
            alone = logits.log_softmax(-1)
            hidden = critic.backbone(input_ids=torch.tensor([[*prompt, *response]])).last_hidden_state[0]
            # The library computes a linear-attention state in float32, over chunks that left padding moves.
            close = {"rtol": 0.0, "atol": 2e-6 if read_capabilities(policy).linear_attention else 1e-12}
            torch.testing.assert_close(log_probs[index, :count], alone[range(count), list(response)], **close)
            torch.testing.assert_close(entropies[index, :count], -(alone.exp() * alone).sum(-1)[:count], **close)
            torch.testing.assert_close(
                values[index, :count], critic.value_head(hidden)[len(prompt) - 1 : -1, 0][:count], **close
            )
            for found in (log_probs, entropies, values):
                assert not found[index, count:].any()


def test_responses_that_are_all_empty_give_empty_answers() -> None:
    model = ModelConfig(**MODELS["qwen3"])
    batch = lay_out([Row((1, 2), ()), Row((3,), ())], pad_id=256)
    log_probs, entropies = response_log_probs(build_policy(model, seed=0, dtype=torch.float32), batch, temperature=1.0)
    values = response_values(build_critic(model, seed=0, dtype=torch.float32), batch)
    assert log_probs.shape == entropies.shape == values.shape == (2, 0)
