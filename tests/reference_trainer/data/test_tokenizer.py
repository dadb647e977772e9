from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from reference_trainer.data.tokenizer import (
    ASSISTANT_ID,
    BOS_ID,
    EOS_ID,
    PAD_ID,
    USER_ID,
    VOCAB_SIZE,
    build_tokenizer,
    decode,
    encode,
    encode_chat,
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def test_the_special_ids_are_the_ones_announced(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == VOCAB_SIZE == 320
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD_ID, BOS_ID, EOS_ID)


@given(text=st.text(max_size=40))
def test_a_text_is_its_utf8_bytes_and_comes_back(text: str) -> None:
    ids = encode(SHARED, text)
    assert list(ids) == list(text.encode())
    assert decode(SHARED, ids) == text


SHARED = build_tokenizer()  # hypothesis does not reset fixtures between examples


@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20))
def test_any_sequence_of_ids_can_be_decoded(ids: list[int]) -> None:
    assert isinstance(decode(SHARED, ids), str)


def test_the_name_of_a_special_token_in_a_text_is_only_text(tokenizer: PreTrainedTokenizerFast) -> None:
    assert EOS_ID not in encode(tokenizer, "a<|end|>b")


def test_a_chat_is_rendered_as_turns_with_the_assistant_opened(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode_chat(tokenizer, [{"role": "user", "content": "4 - 1"}])
    assert ids == (BOS_ID, USER_ID, *b"4 - 1", EOS_ID, ASSISTANT_ID)


def test_a_longer_chat_extends_a_shorter_one(tokenizer: PreTrainedTokenizerFast) -> None:
    turns = [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2"},
    ]
    assert encode_chat(tokenizer, turns)[: len(encode_chat(tokenizer, turns[:1]))] == encode_chat(tokenizer, turns[:1])
    assert bytes(encode_chat(tokenizer, turns)[9:10]) == b"2"


def test_an_unknown_role_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TemplateError, match="unknown role wizard"):
        encode_chat(tokenizer, [{"role": "wizard", "content": "x"}])
