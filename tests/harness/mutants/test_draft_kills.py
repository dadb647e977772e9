"""The case of drafts on tiny models with a drafter: the sound engine passes, each mutant is killed by its assertion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cases.base import Context
from harness.cases.drafts import DraftsAreLossless
from harness.cases.runner import run_case
from harness.matrix.cell import AXES, Cell
from harness.mutants.activate import Activation
from harness.mutants.drafts import MUTANTS
from harness.subjects.protocol import Subject
from harness.subjects.registry import build_subject
from tests.reference_trainer.tiny import MODELS

CASE = DraftsAreLossless()


def drafted(cell: Cell, model: str) -> Cell:
    kind = "assistant" if model.startswith("gemma4") else "mtp"
    return replace(cell, model=model, settings={**cell.settings, "model": {**MODELS[model], "drafter": {"kind": kind}}})


@pytest.fixture(scope="module")
def subject(tiny_cell: Cell) -> Iterator[Subject]:
    subject = build_subject(drafted(tiny_cell, "qwen3"))
    yield subject
    subject.close()


@pytest.mark.parametrize("model", ["qwen3", "qwen3.5", "gemma4"])
def test_the_sound_engine_passes(model: str, tiny_cell: Cell) -> None:
    cell = drafted(tiny_cell, model)
    subject = build_subject(cell)
    try:
        answer = run_case(CASE, Context(cell=cell, subject=subject, seed=1), seed=1, examples=20)
        assert answer.passed, answer.message
    finally:
        subject.close()


def test_it_applies_to_models_with_a_drafter(tiny_cell: Cell) -> None:
    assert "no drafter" in CASE.applies(tiny_cell)
    assert CASE.applies(drafted(tiny_cell, "qwen3")) == ""


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.only_model is None], ids=lambda mutant: mutant.name.partition(":")[2]
)
def test_a_mutant_is_killed(
    mutant: object,
    tiny_cell: Cell,
    subject: Subject,
    patches_undone: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = mutant.name  # type: ignore[attr-defined]
    cell = drafted(tiny_cell, "qwen3")
    monkeypatch.setattr(DraftsAreLossless, "seconds", 3.0)
    hits = tmp_path / "hits"
    Activation(name=name, hits_path=str(hits), axes={axis: getattr(cell, axis) for axis in AXES})()
    answer = run_case(CASE, Context(cell=cell, subject=subject, seed=1), seed=1, examples=50)
    assert not answer.passed, f"passed {answer.examples} examples"
    assert answer.by_assertion, answer.detail
    assert answer.failure_class in {CASE.failure_class, *CASE.other_classes}
    assert hits.stat().st_size > 0
