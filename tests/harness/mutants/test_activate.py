from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RequestError
from harness.mutants import activate
from harness.mutants.activate import Activation
from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere
from reference_trainer.algorithms import kl


def _install(hit: Hit) -> None:
    def broken(*given: Any, **settings: Any) -> str:
        hit()
        return "broken"

    replace_everywhere(kl.kl_k1, broken)


@pytest.fixture(autouse=True)
def one_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = Mutant(name="case.x:m", case="case.x", defect="d", install=_install, only_model="qwen3")
    monkeypatch.setattr(activate, "all_mutants", lambda: {mutant.name: mutant})
    monkeypatch.setattr(kl, "kl_k1", kl.kl_k1)  # put back afterwards


def _activated(path: Path, **cell: str) -> Activation:
    name = cell.pop("name", "case.x:m")
    axes = {"model": "qwen3", "topology": "dp1", "algorithm": "grpo", **cell}
    return pickle.loads(pickle.dumps(Activation(name=name, hits_path=str(path), axes=axes)))


def test_it_travels_by_name_and_counts_in_the_file(tmp_path: Path) -> None:
    _activated(tmp_path / "hits")()
    import torch

    assert kl.kl_k1(torch.zeros(1), torch.zeros(1)) == "broken"
    assert (tmp_path / "hits").stat().st_size == 1


def test_in_another_model_s_cell_the_sound_code_runs_and_is_counted(tmp_path: Path) -> None:
    _activated(tmp_path / "hits", model="gemma4")()
    import torch

    assert kl.kl_k1(torch.ones(1), torch.zeros(1)).item() == 1.0
    assert (tmp_path / "hits").stat().st_size == 1


def test_an_unknown_mutant_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r'no mutant "case.x:n"; did you mean "case.x:m"'):
        _activated(tmp_path / "hits", name="case.x:n")()
