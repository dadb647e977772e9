"""The functions' table, the oracles and the subject name the same functions."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.cases import oracles
from harness.cases.base import Violation
from harness.cases.functions import FUNCTIONS, HELD_BY_A_LAW
from harness.cases.loss import MatchesOracle
from harness.results.vocabulary import FailureClass
from harness.subjects import reference_functions

TABLE = Path(__file__).parents[3] / "docs" / "algorithms" / "functions.md"


def rows() -> dict[str, list[str]]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.replace(r"\|", "∣").strip("|").split("|")] for line in lines]
    return {cell[0].strip("`"): cell for cell in cells}


def test_every_function_has_an_oracle_and_every_oracle_a_function() -> None:
    assert set(reference_functions.NAMES) == {*FUNCTIONS, *HELD_BY_A_LAW}


def test_the_table_holds_every_function_and_no_other() -> None:
    assert set(rows()) == set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(rows()))
def test_a_row_names_a_function_and_an_oracle_that_exist(name: str) -> None:
    _, function, _, formula, _, oracle = rows()[name]
    module, attribute = function.strip("`").split(".")
    assert callable(getattr(importlib.import_module(f"reference_trainer.algorithms.{module}"), attribute))
    assert callable(getattr(oracles, oracle.strip("`")))
    assert formula


def test_a_function_without_an_oracle_fails_the_case() -> None:
    @dataclass
    class Subject:
        def function_names(self) -> tuple[str, ...]:
            return (*FUNCTIONS, "policy_loss.new")

    @dataclass
    class Stub:
        subject: Any

    data = {
        "function": "advantage.remax",
        "dtype": "float32",
        "shape": [0],
        "settings": {},
        "inputs": {"scores": [], "baselines": []},
    }
    with pytest.raises(Violation, match=r"policy_loss\.new") as raised:
        MatchesOracle().check(Stub(subject=Subject()), data)  # type: ignore[arg-type]
    assert raised.value.failure_class is FailureClass.CONTRACT
