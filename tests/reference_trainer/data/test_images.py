from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.data.image_tokens import ImageTokens
from reference_trainer.data.images import Image, as_image, as_plain
from reference_trainer.data.segments import encode_segments
from reference_trainer.data.tokenizer import ASSISTANT_ID, BOS_ID, EOS_ID, USER_ID, build_tokenizer, decode

TOKENIZER = build_tokenizer()
TOKENS = ImageTokens(placeholder_id=262, start_id=263, end_id=264, side=4)
IMAGES = st.builds(
    lambda down, across, value: Image(height=4 * down, width=4 * across, rgb=bytes([value]) * (48 * down * across)),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 255),
)
TEXTS = st.text(st.characters(exclude_characters="\ufffc", exclude_categories=["Cs"]), max_size=5)


def small() -> Image:
    return Image(height=1, width=2, rgb=bytes(range(6)))


def test_an_image_is_taken_as_record_fields_or_array() -> None:
    shown = small()
    for same in (shown, as_plain(shown), msgpack.unpackb(msgpack.packb(as_plain(shown))), shown.array, shown.array * 1):
        assert as_image(same) == shown
    assert shown.array[0, 1].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("a text", "a str is no image"),
        (Path("/etc/hostname"), "Path is no image"),
        (b"\x89PNG", "a bytes is no image"),
        (7, "a int is no image"),
        ([[1, 2, 3]], "a list is no image"),
        ({"path": "x.png"}, r"has the keys height, width and rgb, not \['path'\]"),
        (np.zeros((2, 2)), r"an array \(2, 2\) of float64 is no image"),
        (np.zeros((2, 2, 4), dtype=np.uint8), r"an array \(2, 2, 4\) of uint8 is no image"),
    ],
)
def test_another_type_is_refused_by_its_name(item: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        as_image(item)
    if not isinstance(item, str):
        with pytest.raises(TypeError, match=said):
            encode_segments(TOKENIZER, ["before", item], TOKENS, chat=False)


@pytest.mark.parametrize(("height", "width", "count"), [(1, 2, 5), (0, 2, 0), (2, 0, 0), (-1, -1, 3)])
def test_an_image_has_three_bytes_a_pixel(height: int, width: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"{height} × {width} pixels came with {count} bytes"):
        Image(height=height, width=width, rgb=bytes(count))


@given(segments=st.lists(IMAGES | TEXTS, max_size=6), chat=st.booleans())
def test_segments_keep_their_order_and_each_image_its_placeholders(segments: list[Image | str], chat: bool) -> None:
    ids, images = encode_segments(TOKENIZER, segments, TOKENS, chat=chat)
    assert list(images) == [part for part in segments if isinstance(part, Image)]
    expected: list[int] = []
    for part in segments:
        if isinstance(part, Image):
            expected += [263, *[262] * (part.height * part.width // 16), 264]
        else:
            expected += part.encode()
    inner = list(ids[2:-2]) if chat else list(ids)
    assert inner == expected
    if chat:
        assert (*ids[:2], *ids[-2:]) == (BOS_ID, USER_ID, EOS_ID, ASSISTANT_ID)
    assert len(TOKENS.starts(ids, images, row="row")) == len(images)


def test_text_alone_is_encoded_as_text_and_needs_no_model_that_sees() -> None:
    assert encode_segments(TOKENIZER, ["hi"], None, chat=False) == (tuple(b"hi"), ())
    ids, _ = encode_segments(TOKENIZER, ["hi"], None, chat=True)
    assert decode(TOKENIZER, ids) == "<|bos|><|user|>hi<|end|><|assistant|>"


def test_what_would_lose_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match="has 1 images and the model takes none"):
        encode_segments(TOKENIZER, [small()], None, chat=False)
    with pytest.raises(ValueError, match="holds U\\+FFFC"):
        encode_segments(TOKENIZER, ["a\ufffcb"], TOKENS, chat=False)
    deaf = build_tokenizer()
    deaf.chat_template = "{{ bos_token }}"
    shown = Image(height=4, width=4, rgb=bytes(48))
    with pytest.raises(ValueError, match="shows 0 of the prompt's 1 images"):
        encode_segments(deaf, [shown, "x"], TOKENS, chat=True)


@pytest.mark.parametrize("marks", [(None, None), (263, None), (None, 264)])
def test_an_architecture_without_marks_gets_none(marks: tuple[int | None, int | None]) -> None:
    tokens = ImageTokens(placeholder_id=262, start_id=marks[0], end_id=marks[1], side=4)
    shown = Image(height=4, width=8, rgb=bytes(96))
    assert tokens.expand(shown) == tuple(mark for mark in (marks[0], 262, 262, marks[1]) if mark is not None)
    # Side by side and unmarked, two images are still told apart by their sizes.
    ids = tokens.expand(shown) * 2
    starts = tokens.starts(ids, (shown, shown), row="row")
    assert [ids[start : start + 2] for start in starts] == [(262, 262)] * 2
