"""A byte-level tokenizer built here: id = byte value, then a few special tokens. Nothing is downloaded.

The chat template is ours as well; transformers renders it in a sandboxed jinja environment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

PAD_ID, BOS_ID, EOS_ID, USER_ID, ASSISTANT_ID, SYSTEM_ID = range(256, 262)
IMAGE_ID, VISION_START_ID, VISION_END_ID = range(262, 265)  # reserved ids, which no text is encoded to
_SPECIAL = ("<|pad|>", "<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
VOCAB_SIZE = 320  # 256 bytes, the special tokens, and reserved ids up to a round number

# Each turn is <|role|>content<|end|>, so the end of the assistant's turn is the end token of a response.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' ~ message.role) }}"
    "{% endif %}"
    "{{ '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of `VOCAB_SIZE` ids that encodes any text and decodes any sequence of ids."""
    byte_of = bytes_to_unicode()
    vocabulary = {byte_of[value]: value for value in range(256)}
    vocabulary |= {f"<|reserved_{index}|>": index for index in range(256 + len(_SPECIAL), VOCAB_SIZE)}
    vocabulary |= {token: 256 + index for index, token in enumerate(_SPECIAL)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))  # no merges: bytes stay bytes
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, bos, eos, user, assistant, system = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        additional_special_tokens=[user, assistant, system],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[int, ...]:
    """Ids of a text as it stands: nothing is added, and the name of a special token in it is only text."""
    return tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def encode_chat(tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
    """Ids of the rendered conversation with the assistant's turn opened."""
    rendered = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer.encode(str(rendered), add_special_tokens=False))


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """Text of the ids, special tokens by name; bytes that are no UTF-8 become the replacement character."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))
