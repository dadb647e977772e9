"""Reads a YAML file that a person wrote into plain data that remembers its line numbers.

Stricter than PyYAML, because what it lets through is believed: only plain scalars, lists and mappings with text keys;
no aliases (so no billion laughs), no tags, no duplicate keys; bounded in size and depth. Scalars follow YAML 1.2's core
schema, so `5e-4` is a number and `no` is a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.errors import RequestError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 24

Place = tuple[str | int, ...]  # where a value is inside a document: keys and list positions
_PLAIN_TAGS = {"str", "int", "float", "bool", "null", "timestamp", "merge", "value"}  # what PyYAML resolves unasked

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_TRUE = re.compile(r"(?:true|True|TRUE)\Z")
_FALSE = re.compile(r"(?:false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]{1,40}\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")


@dataclass(frozen=True, kw_only=True)
class Document:
    """Plain data from one file, and the line of every key and list item in it."""

    path: Path
    data: Any
    lines: Mapping[Place, int]

    def where(self, at: Place = ()) -> str:
        """`file:line` of what stands at `at`, or of the nearest thing around it."""
        while at not in self.lines:
            at = at[:-1]
        return f"{shown_path(self.path)}:{self.lines[at]}"


def shown_path(path: Path) -> Path:
    """The path as a person in this folder would type it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def read_document(path: Path) -> Document:
    """Read one YAML file. Raises RequestError, with file and line where there is one."""
    file = str(shown_path(path))
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{file}: cannot be read ({error.strerror}); give a readable YAML file") from None
    if len(raw) > MAX_BYTES:
        raise RequestError(f"{file}: is larger than {MAX_BYTES // 1024} KiB; a matrix file is a few lines an entry")
    try:
        node = _Composer(raw.decode("utf-8"), file).get_single_node()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise RequestError(f"{file}:{line}: is not UTF-8 text (byte 0x{raw[error.start]:02x})") from None
    except yaml.reader.ReaderError as error:
        line = raw.decode("utf-8")[: error.position].count("\n") + 1
        raise RequestError(f"{file}:{line}: character #x{error.character:04x} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = " ".join(filter(None, (error.context, error.problem)))
        raise RequestError(f"{file}:{line}: is not valid YAML ({what})") from None
    if node is None:
        raise RequestError(f"{file}:1: is empty; it must hold a mapping")
    lines: dict[Place, int] = {(): node.start_mark.line + 1}
    return Document(path=path, data=_plain(node, (), file, lines), lines=lines)


class _Composer(yaml.SafeLoader):
    """Composes nodes only; refuses aliases and depth while it does."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        line = self.peek_event().start_mark.line + 1
        if self.check_event(yaml.AliasEvent):
            raise RequestError(f'{self._file}:{line}: alias "*{self.peek_event().anchor}" is not allowed; write it out')
        if self._depth >= MAX_DEPTH:
            raise RequestError(f"{self._file}:{line}: is nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _plain(node: yaml.Node, at: Place, file: str, lines: dict[Place, int]) -> Any:
    here = f"{file}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, here)
    if isinstance(node, yaml.SequenceNode):
        _refuse_tag(node, "tag:yaml.org,2002:seq", here)
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
        return [_plain(item, (*at, index), file, lines) for index, item in enumerate(node.value)]
    _refuse_tag(node, "tag:yaml.org,2002:map", here)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _scalar(key_node, f"{file}:{line}") if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise RequestError(f"{file}:{line}: key {_shown(key_node)} is not text; put it in quotes")
        if key in result:
            raise RequestError(
                f'{file}:{line}: key "{key}" is there twice (first in line {lines[(*at, key)]}); keep one'
            )
        lines[(*at, key)] = line
        result[key] = _plain(value_node, (*at, key), file, lines)
    return result


def _shown(node: yaml.Node) -> str:
    return f'"{node.value}"' if isinstance(node, yaml.ScalarNode) else "of more than one word"


def _scalar(node: yaml.ScalarNode, here: str) -> Any:
    if any("\ud800" <= sign <= "\udfff" for sign in node.value):
        raise RequestError(
            f"{here}: {ascii(node.value)[:60]} holds half a character (a surrogate); write the whole one"
        )
    if node.style is not None:  # quoted or a block: always text
        _refuse_tag(node, "tag:yaml.org,2002:str", here)
        return node.value
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _PLAIN_TAGS:
        raise _tag_error(node, here)
    text = node.value
    if _NULL.match(text):
        return None
    if _TRUE.match(text) or _FALSE.match(text):
        return bool(_TRUE.match(text))
    if _INT.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


def _refuse_tag(node: yaml.Node, expected: str, here: str) -> None:
    if node.tag != expected:
        raise _tag_error(node, here)


def _tag_error(node: yaml.Node, here: str) -> RequestError:
    return RequestError(f'{here}: tag "{node.tag}" is not allowed; use plain values')
