"""How far a run looks: derandomised for pull requests, exploring at night, long once a week."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from harness.errors import RequestError, nearest
from harness.execution.seeds import DERANDOMISED


@dataclass(frozen=True, kw_only=True)
class Profile:
    name: str
    derandomised: bool  # one fixed seed; else a new one each run, which the header records
    examples_scale: float


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="pr", derandomised=True, examples_scale=1.0),
        Profile(name="nightly", derandomised=False, examples_scale=2.0),
        Profile(name="weekly", derandomised=False, examples_scale=10.0),
    )
}


def profile_named(name: str) -> Profile:
    """Raises RequestError when there is no such profile."""
    if name not in PROFILES:
        raise RequestError(f'unknown profile "{name}"; {nearest(name, PROFILES)}')
    return PROFILES[name]


def run_seed(profile: Profile, asked: int | None) -> int:
    """The run's seed: the one asked for, the fixed one, or a new one."""
    if asked is not None:
        return asked
    return DERANDOMISED if profile.derandomised else secrets.randbelow(2**31)
