from __future__ import annotations

import sys
import types

import pytest

from harness.mutants.patching import inert, replace_everywhere, replace_method


def sound() -> str:
    return "sound"


class Owner:
    def method(self) -> str:
        return "sound"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the trainer that holds the function under two names and in a registry."""
    module = types.ModuleType("reference_trainer.pretended")
    module.first = module.second = sound  # type: ignore[attr-defined]
    module.REGISTRY = {"sound": sound, "other": len}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_every_name_and_registry_entry_is_replaced(module: types.ModuleType) -> None:
    assert replace_everywhere(sound, lambda: "broken") == 3
    assert module.first() == module.second() == module.REGISTRY["sound"]() == "broken"
    assert module.REGISTRY["other"] is len


def test_a_function_that_is_bound_nowhere_is_an_error(module: types.ModuleType) -> None:
    def stranger() -> None: ...

    with pytest.raises(LookupError, match="nothing to break"):
        replace_everywhere(stranger, lambda: None)


def test_an_inert_mutant_only_counts(module: types.ModuleType) -> None:
    hits: list[None] = []
    with inert(lambda: hits.append(None)):
        replace_everywhere(sound, lambda: "broken")
    assert module.first() == "sound"
    assert len(hits) == 1


def test_a_method_is_replaced_in_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "method", Owner.method)  # put back afterwards
    replace_method(Owner, "method", lambda self: "broken")
    assert Owner().method() == "broken"
    with pytest.raises(LookupError, match="defines no other"):
        replace_method(Owner, "other", lambda self: None)
