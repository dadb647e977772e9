"""Cases that do to their process what real code does to it, and a subject with nothing in it. Steers the tests here."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from harness.cases.base import Case, Context, require
from harness.matrix.cell import Cell

CELL = Cell(
    subject="reference",
    hardware="cpu",
    model="none",
    algorithm="none",
    mode="sync",
    engine="native",
    topology="dp1",
)


class EmptySubject:
    name = "empty"

    def close(self) -> None:
        pass


def build(cell: Cell, *, mutant: str | None, hits_path: Path | None, threads: int) -> EmptySubject:
    return EmptySubject()


def build_that_fails(cell: Cell, *, mutant: str | None, hits_path: Path | None, threads: int) -> EmptySubject:
    raise RuntimeError("no such weights")


class _One(Case):
    """One input, one act."""

    origin = "tests"
    axes = ()
    needs = frozenset()
    examples = 1
    seconds = 20.0


class Passes(_One):
    id = "ok.passes"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        context.notes["pid"] = os.getpid()
        context.on_step(7, 0, {"reward": 0.5, "absent": None})


class Fails(Case):
    id = "ok.fails"
    origin = "tests"
    axes = ()
    needs = frozenset()

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({"n": st.integers(0, 1000)})

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        require(data["n"] < 17, f"n is {data['n']}, expected below 17")


class Raises(_One):
    id = "bad.raises"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        raise KeyError("lost")


class Segfaults(_One):
    id = "bad.segfaults"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        print("about to fall", flush=True)
        ctypes.string_at(0)


class IsKilled(_One):
    id = "bad.is-killed"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Exits(_One):
    id = "bad.exits"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        os._exit(3)


class Hangs(_One):
    id = "bad.hangs"
    seconds = 1.0

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        time.sleep(600)


class Crawls(_One):
    id = "bad.crawls"
    seconds = 2.0

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        while True:
            context.progress()
            time.sleep(0.05)


class AsksForTooMuch(_One):
    id = "bad.asks-for-too-much"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        import torch

        torch.ones(64 * 1024**3, dtype=torch.uint8)


class GrandchildGrows(_One):
    """The child itself stays small: only the group's size tells."""

    id = "bad.grandchild-grows"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        grow = "import time; x = bytearray(b'x') * (700 * 1024**2); time.sleep(600)"
        subprocess.run([sys.executable, "-c", grow], check=True)


class TalksNonsense(_One):
    """Writes on the runner's pipe what is no message, the first time only: a fault of the surroundings."""

    id = "bad.talks-nonsense"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        marker = Path(data["marker"])
        if not marker.exists():
            marker.touch()
            for cell in context.progress.__closure__ or ():
                if hasattr(cell.cell_contents, "send_bytes"):
                    cell.cell_contents.send_bytes(b"\x80 not json")
            time.sleep(600)


ALL = (
    Passes(),
    Fails(),
    Raises(),
    Segfaults(),
    IsKilled(),
    Exits(),
    Hangs(),
    Crawls(),
    AsksForTooMuch(),
    GrandchildGrows(),
    TalksNonsense(),
)


def cases() -> dict[str, Case]:
    return {case.id: case for case in ALL}
