from __future__ import annotations

import pytest
import torch

from reference_trainer.config import ConfigError
from reference_trainer.platforms.registry import PLATFORMS, platform_by_name


def test_the_cpu_is_always_here_and_says_what_it_is() -> None:
    cpu = platform_by_name("cpu")
    assert (cpu.name, cpu.device_type, cpu.collectives, cpu.visibility_variable) == ("cpu", "cpu", "gloo", None)
    assert cpu.why_not_available() == ""
    assert cpu.device_count() == 1
    assert cpu.device() == torch.device("cpu")
    with pytest.raises(ValueError, match="device index 1"):
        cpu.device(1)


def test_its_memory_is_the_hosts_and_this_processes() -> None:
    cpu = platform_by_name("cpu")
    before = cpu.memory()
    assert 0 < before.used <= before.peak < before.total
    assert 0 < before.free <= before.total
    held = torch.ones(32 * 2**20 // 4)  # 32 MiB, touched
    assert cpu.memory().used - before.used > 30 * 2**20
    assert cpu.memory().peak >= before.used + 30 * 2**20
    del held


def test_every_dtype_it_names_runs_forward_and_backward() -> None:
    for name in platform_by_name("cpu").dtypes():
        x = torch.randn(4, 4, dtype=getattr(torch, name), requires_grad=True)
        (x @ x).sum().backward()
        assert x.grad is not None


def test_a_childs_environment_keeps_the_parents_and_the_users() -> None:
    child = platform_by_name("cpu").child_environment({"HOME": "/h", "OMP_WAIT_POLICY": "ACTIVE"}, threads=2)
    assert child == {"HOME": "/h", "OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "2"}


def test_its_out_of_memory_text_is_the_one_torch_raises() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert any(text in str(caught.value) for text in PLATFORMS["cpu"].out_of_memory_texts)


def test_an_unknown_platform_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match='platform is "gpu"; did you mean "cpu"'):
        platform_by_name("gpu")
