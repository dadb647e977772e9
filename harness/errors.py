"""Errors a user can mend: one sentence with what happened, the value and the remedy. The command prints it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum

_LISTED = 12  # names; a longer list is not read


class ExitCode(IntEnum):
    """What the command's exit status says."""

    PASSED = 0  # all requested cells passed
    FAILED = 1  # a cell failed
    WRONG_REQUEST = 2  # the request itself was wrong
    NOTHING_MEASURED = 3  # nothing was measured, so nothing was proven


class UserError(Exception):
    """A mistake the user can mend. `str(error)` is one sentence; `exit_code` is what the command ends with."""

    exit_code: int = ExitCode.WRONG_REQUEST


class RequestError(UserError):
    """The request names something that does not exist or contradicts itself."""


class NothingMeasuredError(UserError):
    """The request was well formed, and yet nothing can be or was measured."""

    exit_code = ExitCode.NOTHING_MEASURED


def nearest(value: str, known: Iterable[str]) -> str:
    """Return a remedy for an unknown name: the nearest known one, or all of them when none is near.

    >>> nearest("grop", ["ppo", "grpo"])
    'did you mean "grpo"?'
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    if close:
        return f'did you mean "{close[0]}"?'
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return "known: " + (", ".join(names[:_LISTED]) + more if names else "none")
