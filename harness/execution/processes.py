"""Process trees by /proc, standard library only: the warden imports this and must stay light."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and process group of `pid`; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    state, parent, group = fields[0], int(fields[1]), int(fields[2])
    return None if state in "ZX" else (parent, group)


def members(*, groups: Iterable[int] = (), roots: Iterable[int] = ()) -> set[int]:
    """Live processes of these process groups, and these roots with all that descends from either.

    Following parents as well as groups finds a process that called setsid, unless its parent is gone already.
    """
    wanted_groups, wanted_roots = set(groups), set(roots)
    table = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    found = {pid for pid, (_, group) in table.items() if group in wanted_groups or pid in wanted_roots}
    grew = True
    while grew:
        more = {pid for pid, (parent, _) in table.items() if parent in found and pid not in found}
        found |= more
        grew = bool(more)
    return found - {os.getpid()}


def kill_all(*, groups: Iterable[int] = (), roots: Iterable[int] = (), seconds: float = 5.0) -> set[int]:
    """SIGKILL all members until none is left; return those that outlived `seconds` (none, on a healthy kernel)."""
    wanted_groups, wanted_roots = tuple(groups), set(roots)
    deadline = time.monotonic() + seconds
    while True:
        living = members(groups=wanted_groups, roots=wanted_roots)
        if not living or time.monotonic() > deadline:
            return living
        # A killed parent hands its children to init, where only the group finds them: remember every member as a root.
        wanted_roots |= living
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def proportional_bytes(pid: int) -> int:
    """Resident bytes of one process, shared pages divided among their users; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
