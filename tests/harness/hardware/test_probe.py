"""The probe says which evidence this machine can give, or why it gives none."""

from __future__ import annotations

import importlib.util

import pytest

from harness.errors import RequestError
from harness.hardware.probe import platforms, probe_platform
from harness.results.vocabulary import Evidence


def test_a_cpu_with_torch_gives_device_evidence() -> None:
    assert probe_platform("cpu").evidence is Evidence.DEVICE


def test_a_cpu_without_torch_gives_none_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    finding = probe_platform("cpu")
    assert finding.evidence is None
    assert "torch is not installed" in finding.reason


def test_a_platform_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r'unknown platform "cpuu"; did you mean "cpu"\?'):
        probe_platform("cpuu")
    assert "cpu" in platforms()


def test_the_harness_probes_the_platforms_that_the_trainer_has() -> None:
    from reference_trainer.platforms.registry import PLATFORMS

    assert set(platforms()) == set(PLATFORMS)
