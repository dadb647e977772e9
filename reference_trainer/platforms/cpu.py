"""The CPU as a platform: always here, its memory is the host's and this process's resident bytes."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping

import psutil
import torch

from reference_trainer.platforms.base import Memory


class CpuPlatform:
    """A `Platform`."""

    name = "cpu"
    device_type = "cpu"
    collectives = "gloo"
    visibility_variable: str | None = None
    out_of_memory_texts: tuple[str, ...] = ("DefaultCPUAllocator: can't allocate memory", "MemoryError")

    def why_not_available(self) -> str:
        return ""

    def device_count(self) -> int:
        return 1

    def device(self, index: int = 0) -> torch.device:
        if index != 0:
            raise ValueError(f"device index {index} does not exist; the CPU is one device, index 0")
        return torch.device(self.device_type)

    def memory(self, index: int = 0) -> Memory:
        self.device(index)
        host = psutil.virtual_memory()
        used = psutil.Process().memory_info().rss
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB on Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return Memory(total=host.total, free=host.available, used=used, peak=max(peak, used))

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def synchronize(self) -> None:
        """A CPU has done what was asked of it when the call returns."""

    def child_environment(self, base: Mapping[str, str], *, threads: int) -> dict[str, str]:
        """Waiting OpenMP threads sleep: spinning ones slow the other processes of a small machine several times."""
        return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **base}

    def dtypes(self) -> tuple[str, ...]:
        return ("float32", "float64", "bfloat16")
