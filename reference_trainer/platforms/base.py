"""What the trainer asks of the machine it runs on. Nothing outside this package names a vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device, or of the host and this process where the device is the host."""

    total: int
    free: int
    used: int
    """Held by this process."""
    peak: int
    """Most that this process has held."""


class Platform(Protocol):
    """One kind of device."""

    name: str
    """As matrices name it: `cpu`."""
    device_type: str
    """As torch names it."""
    collectives: str
    """Backend of torch.distributed."""
    visibility_variable: str | None
    """Environment variable that says which devices a process sees; None when there is none."""
    out_of_memory_texts: tuple[str, ...]
    """Any of these in an error says that memory ran out."""

    def why_not_available(self) -> str:
        """Empty when the platform is here, else a sentence."""
        ...

    def device_count(self) -> int: ...

    def device(self, index: int = 0) -> torch.device: ...

    def memory(self, index: int = 0) -> Memory: ...

    def seed(self, seed: int) -> None:
        """Seed torch's global generators, of which the trainer itself draws nothing."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it; clocks are read after it."""
        ...

    def child_environment(self, base: Mapping[str, str], *, threads: int) -> dict[str, str]:
        """Environment of a child process: all of `base`, and what the platform needs where `base` does not say it."""
        ...

    def dtypes(self) -> tuple[str, ...]:
        """Floating types that forward and backward passes can use."""
        ...
