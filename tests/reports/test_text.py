from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reports import learning, text

anything = st.text(st.characters(), max_size=60) | st.text("`|*_<>[]()#&\\~$! \n\ta:/", max_size=40)
commonmark = MarkdownIt("commonmark").enable("table")


def tokens(source):
    for token in commonmark.parse(source):
        yield token
        yield from token.children or ()


def shown(source):
    return "".join(token.content for token in tokens(source) if token.type in ("text", "code_inline"))


@pytest.mark.parametrize("module", [text, learning])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@given(anything)
def test_escaped_text_is_text_and_nothing_else(value):
    kinds = {token.type for token in tokens(f"a {text.markdown(value)} z")}
    assert kinds <= {"paragraph_open", "paragraph_close", "inline", "text", "text_special"}


@given(anything)
def test_a_row_keeps_its_columns_whatever_is_in_it(value):
    source = f"| a | b | c |\n|---|---|---|\n| {text.code(value)} | {text.markdown(value)} | end |\n"
    cells = [token.content for token in commonmark.parse(source) if token.type == "inline"]
    assert len(cells) == 6
    assert cells[-1] == "end"


@given(anything.filter(lambda value: value.split() and "|" not in value))
def test_a_code_span_shows_the_text_as_it_is(value):
    assert shown(f"a {text.code(value)} z") == f"a {text.one_line(value)} z"


@given(anything)
def test_a_block_cannot_be_left_by_its_content(value):
    blocks = list(commonmark.parse(str(text.block(value, "sh"))))
    assert [token.type for token in blocks] == ["fence"]


@pytest.mark.parametrize("value", ["\x00", "\x1b[31m", "\u202e", "\udc80", "\x85", "\u2028"])
def test_what_acts_on_a_terminal_or_a_reader_is_shown_as_an_escape(value):
    assert text.printable(f"a{value}b").isprintable()
    assert text.printable(f"a{value}b").encode().startswith(b"a\\")


def test_a_long_line_is_cut_and_says_so():
    assert text.one_line("x" * 500, 10) == "xxxxxxxxx…"
