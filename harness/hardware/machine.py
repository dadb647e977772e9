"""Where a run happens: the machine's class, which keys every series, and the versions in it. Imports no torch."""

from __future__ import annotations

import platform
import re
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from harness.execution.limits import usable_cores
from harness.results.records import Machine

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "hypothesis",
    "reasoning-gym",
    "pyzmq",
    "pydantic",
)
_NOISE = re.compile(r"\(r\)|\(tm\)|\bcpu\b|\bprocessor\b|@.*$", re.IGNORECASE)


def describe_machine(*, cpu_capability: str) -> Machine:
    """Describe this machine. `cpu_capability` is torch's dispatch level, from whoever has torch loaded."""
    cores = usable_cores()
    return Machine(
        machine_class=machine_class(cpu_model(), cores=cores),
        hostname=socket.gethostname(),
        cores=cores,
        memory_bytes=psutil.virtual_memory().total,
        cpu_capability=cpu_capability,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def machine_class(cpu: str, *, cores: int) -> str:
    """A short key; numbers of different classes are never compared.

    >>> machine_class("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", cores=2)
    'intel-xeon-platinum-8481c/2c'
    """
    words = re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", cpu).lower()).strip("-")
    return f"{words or 'unknown'}/{cores}c"


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the kernel gives it; on architectures where it gives none, implementer and part."""
    found: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else ():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    if "model name" in found:
        return found["model name"]
    parts = [found[key] for key in ("CPU implementer", "CPU part") if key in found]
    return " ".join([platform.machine(), *parts])


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results, by distribution name; absent ones are left out."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        if (found := package_version(name)) is not None:
            versions[name] = found
    return versions


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
