"""A folder of matrix files that a test may spoil."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.matrix.expand import Expansion, expand
from harness.matrix.load import CATALOGUES, MATRICES, load_catalogue, load_suite


@pytest.fixture
def matrices(tmp_path: Path) -> Path:
    """The project's own catalogues, and no suite."""
    for name in CATALOGUES:
        shutil.copy(MATRICES / f"{name}.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def expanded(matrices: Path) -> Callable[..., Expansion]:
    """Write suites given by name and text, and spell the last one out."""

    def write_and_expand(**suites: str) -> Expansion:
        for name, text in suites.items():
            (matrices / f"{name}.yaml").write_text(f"suite: {name}\ndescription: a test\n{text}", encoding="utf-8")
        return expand(load_suite(name, matrices), load_catalogue(matrices))

    return write_and_expand
