"""Which evidence this machine can give for a platform, and why not more. Imports no torch: planning starts at once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import RequestError, nearest
from harness.results.vocabulary import Evidence


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The best evidence this machine can give, None when it can give none; `reason` says why there is no better."""

    evidence: Evidence | None
    reason: str = ""


Probe = Callable[[str], Finding]


def probe_platform(platform: str) -> Finding:
    """Ask this machine. Raises RequestError for a platform that no machine can be asked for."""
    if platform not in _PROBES:
        raise RequestError(f'unknown platform "{platform}"; {nearest(platform, _PROBES)}')
    return _PROBES[platform]()


def platforms() -> tuple[str, ...]:
    """Platforms that can be asked for."""
    return tuple(_PROBES)


def _probe_cpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(evidence=None, reason="torch is not installed; install the project's requirements")
    return Finding(evidence=Evidence.DEVICE)


_PROBES: dict[str, Callable[[], Finding]] = {"cpu": _probe_cpu}
