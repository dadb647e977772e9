"""A prompt of text and images, in order, as ids and the images that their placeholders stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from reference_trainer.data.image_tokens import ImageTokens
from reference_trainer.data.images import Image, as_image
from reference_trainer.data.tokenizer import encode

_PLACE = "\ufffc"  # Unicode's own sign for an object within a text; only a template ever sees it


def encode_segments(
    tokenizer: PreTrainedTokenizerFast, segments: Sequence[Any], tokens: ImageTokens | None, *, chat: bool
) -> tuple[tuple[int, ...], tuple[Image, ...]]:
    """Ids of the segments, each a text or what `as_image` takes, and the images among them, all in the given order.

    `chat` renders them as one user's turn and opens the assistant's. Raises TypeError for another kind of segment and
    ValueError for an image when `tokens` is None: the model takes none.
    """
    images = tuple(as_image(segment) for segment in segments if not isinstance(segment, str))
    if images and tokens is None:
        raise ValueError(
            f"the prompt has {len(images)} images and the model takes none; choose one with a vision tower"
        )
    for segment in segments:
        if isinstance(segment, str) and _PLACE in segment:
            raise ValueError("a text holds U+FFFC, which marks the place of an image; leave it out")
    text = "".join(segment if isinstance(segment, str) else _PLACE for segment in segments)
    if chat:
        messages = [{"role": "user", "content": text}]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    pieces = text.split(_PLACE)
    if len(pieces) != len(images) + 1:
        raise ValueError(
            f"the chat template shows {len(pieces) - 1} of the prompt's {len(images)} images; show all once"
        )
    ids = _encode(tokenizer, pieces[0], chat=chat)
    for image, piece in zip(images, pieces[1:], strict=True):
        assert tokens is not None
        ids += (*tokens.expand(image), *_encode(tokenizer, piece, chat=chat))
    return ids, images


def _encode(tokenizer: PreTrainedTokenizerFast, text: str, *, chat: bool) -> tuple[int, ...]:
    """Of a rendered turn the names of special tokens are those tokens; elsewhere they are text."""
    return tuple(tokenizer.encode(text, add_special_tokens=False)) if chat else encode(tokenizer, text)
