"""A machine's class is one short key that the same kind of machine always gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.hardware.machine import cpu_model, describe_machine, installed_versions, machine_class, package_version


@pytest.mark.parametrize(
    ("cpu", "cores", "key"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", 8, "intel-xeon-platinum-8481c/8c"),
        ("AMD EPYC 9454 48-Core Processor", 2, "amd-epyc-9454-48-core/2c"),
        ("aarch64 0x41 0xd40", 4, "aarch64-0x41-0xd40/4c"),
        ("", 1, "unknown/1c"),
    ],
)
def test_the_class_names_processor_and_cores(cpu: str, cores: int, key: str) -> None:
    assert machine_class(cpu, cores=cores) == key


def test_the_processor_is_read_from_the_kernel(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: First\n\nprocessor\t: 1\nmodel name\t: Second\n")
    assert cpu_model(info) == "First"
    info.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert cpu_model(info).endswith(" 0x41 0xd40")
    assert cpu_model(tmp_path / "missing") != ""


def test_this_machine_is_described_from_what_it_has() -> None:
    machine = describe_machine(cpu_capability="AVX2")
    assert machine.cores >= 1
    assert machine.memory_bytes > 2**28
    assert machine.machine_class.endswith(f"/{machine.cores}c")
    assert machine.cpu_capability == "AVX2"


def test_versions_are_those_installed() -> None:
    versions = installed_versions()
    assert versions["numpy"] == package_version("numpy")
    assert all(versions.values())
    assert package_version("no-such-distribution") is None
