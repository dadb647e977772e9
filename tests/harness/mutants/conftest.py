"""A way to take mutants out again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def patches_undone() -> Iterator[None]:
    """Put back what a mutant replaces in the trainer's modules and classes."""
    holders = _holders()
    before = [(holder, dict(vars(holder))) for holder in holders]
    yield
    for holder, names in before:
        for name, value in vars(holder).copy().items():
            if value is not names.get(name, value):
                setattr(holder, name, names[name])


def _holders() -> list[Any]:
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "reference_trainer"]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.split(".")[0] == "reference_trainer"
    }
    return [*modules, *classes]
