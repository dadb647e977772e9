"""Matrix files are read as plain data with line numbers, and nothing clever gets through."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import RequestError
from harness.matrix.yaml_document import MAX_BYTES, MAX_DEPTH, Document, read_document


def read(tmp_path: Path, text: str | bytes) -> Document:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_document(path)


def test_every_key_and_item_has_its_line(tmp_path: Path) -> None:
    document = read(tmp_path, "a:\n  - x\n  -\n    b: 1\nc: {d: 2,\n    e: 3}\n")
    file = tmp_path / "file.yaml"
    assert document.where(("a", 1, "b")) == f"{file}:4"
    assert document.where(("c", "e")) == f"{file}:6"
    assert document.where(("c", "missing", 7)) == f"{file}:5", "the nearest thing around it"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-4", 0.0005),
        ("1e3", 1000.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("-3", -3),
        ("012", 12),
        ("true", True),
        ("null", None),
        ("", None),
        ("no", "no"),
        ("off", "off"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("qwen3.5", "qwen3.5"),
        ("'7'", "7"),
    ],
)
def test_scalars_are_what_a_reader_takes_them_for(tmp_path: Path, text: str, value: object) -> None:
    seen = read(tmp_path, f"key: {text}\n").data["key"]
    assert seen == value
    assert type(seen) is type(value)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_float_comes_back(tmp_path_factory: pytest.TempPathFactory, number: float) -> None:
    assert float(read(tmp_path_factory.mktemp("yaml"), f"key: {number!r}\n").data["key"]) == number


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "not valid YAML"),
        ("a: 1\n b: 2\n", 2, "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, 'key "a" is there twice (first in line 1)'),
        ("x: {a: 1,\n    a: 2}\n", 2, 'key "a" is there twice'),
        ("a: &x 1\nb: *x\n", 2, 'alias "*x" is not allowed'),
        ("a: &x\n  b: *x\n", 2, "alias"),
        ("a: !!python/object/apply:os.system ['true']\n", 1, "tag"),
        ("a: !!python/name:os.system\n", 1, "tag"),
        ("a: !mine {b: 1}\n", 1, 'tag "!mine"'),
        ("a: !!binary aGVsbG8=\n", 1, "tag"),
        ("a: 1\n3: 2\n", 2, 'key "3" is not text'),
        ("a: 1\n? [b, c]\n: 2\n", 2, "is not text"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        ("a: 1\nb: \x07\n", 2, "#x0007"),
        ("a: 1\nb: " + "[" * (MAX_DEPTH + 1), 2, "nested deeper"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, line: int, says: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/file.yaml:{line}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is empty"):
        read(tmp_path, "# only a comment\n")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_document(tmp_path)


def test_a_laughing_file_costs_nothing(tmp_path: Path) -> None:
    lines = ["l0: &l0 [ha, ha]"] + [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 30)]
    began = perf_counter()
    with pytest.raises(RequestError, match="alias"):
        read(tmp_path, "\n".join(lines))
    assert perf_counter() - began < 1


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="larger than"):
        read(tmp_path, "a: " + "x" * MAX_BYTES)
