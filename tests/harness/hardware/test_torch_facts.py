"""Torch is asked in another process, and one that cannot answer is told from one that can."""

from __future__ import annotations

import pytest

from harness.hardware.torch_facts import TorchUnusableError, ask_torch, canary


def test_torch_answers_with_its_version_and_a_right_product() -> None:
    facts = ask_torch()
    assert facts.canary_exact
    assert facts.version
    assert facts.cpu_capability
    assert 0 < facts.canary_seconds < 10


def test_a_broken_torch_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is missing')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TorchUnusableError, match="ImportError: libtorch is missing"):
        ask_torch()


def test_a_torch_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TorchUnusableError, match=r"longer than 0\.5 s"):
        ask_torch(timeout_seconds=0.5)


def test_a_product_that_is_off_by_one_anywhere_is_noticed() -> None:
    def wrong(left, right):
        product = left @ right
        product[17, 401] += 1
        return product

    assert canary(wrong)[0] is False
    assert canary(lambda left, right: left @ right)[0] is True
