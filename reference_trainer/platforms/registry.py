"""Which platforms there are, and which one a name means."""

from __future__ import annotations

from reference_trainer.config import ConfigError
from reference_trainer.config_errors import nearest_name
from reference_trainer.platforms.base import Platform
from reference_trainer.platforms.cpu import CpuPlatform

PLATFORMS: dict[str, Platform] = {"cpu": CpuPlatform()}


def platform_by_name(name: str) -> Platform:
    """The named platform. Raises ConfigError when it is unknown or not here, with the reason."""
    if name not in PLATFORMS:
        raise ConfigError(f'platform is "{name}"; {nearest_name(name, PLATFORMS)}')
    platform = PLATFORMS[name]
    reason = platform.why_not_available()
    if reason:
        raise ConfigError(f'platform "{name}" is not available: {reason}')
    return platform
