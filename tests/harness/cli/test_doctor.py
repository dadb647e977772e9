"""The doctor tells what is there, and that nothing can be measured when the arithmetic is wrong or torch is missing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.cli import doctor
from harness.hardware.torch_facts import TorchFacts, TorchUnusableError

FACTS = TorchFacts(
    version="2.13.0", cpu_capability="AVX2", threads=2, import_seconds=1.0, canary_exact=True, canary_seconds=0.004
)


def test_a_sound_machine_is_described(command) -> None:
    ended = command("doctor", "--json")
    found = json.loads(ended.out)
    assert ended.code == 0
    assert found["can_measure"] is True
    assert found["torch"]["canary_exact"] is True
    assert found["torch"]["cpu_capability"] == found["machine"]["cpu_capability"] != "unknown"
    assert found["platforms"]["cpu"] == {"evidence": "device", "reason": ""}
    assert {"python", "torch", "transformers"} <= set(found["versions"])
    for extra in found["extras"].values():
        assert bool(extra["version"]) != bool(extra["reason"]), "a version, or why there is none"


def test_a_wrong_product_means_that_nothing_is_measured(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask_torch", lambda: replace(FACTS, canary_exact=False))
    ended = command("doctor")
    assert ended.code == 3
    assert "canary product: WRONG" in ended.out


def test_a_torch_that_cannot_be_imported_is_told_and_not_raised(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> TorchFacts:
        raise TorchUnusableError("libtorch.so: cannot open shared object file")

    monkeypatch.setattr(doctor, "ask_torch", fail)
    ended = command("doctor")
    assert ended.code == 3
    assert "torch: cannot be used: libtorch.so: cannot open shared object file" in ended.out
    assert "cores: " in ended.out
