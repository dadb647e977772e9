"""Calling the command in this process, as its entry point would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from harness.cli.main import main


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("plan", "smoke")`: exit code, stdout and stderr."""

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        try:
            code: object = main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Ended(code=code, out=captured.out, err=captured.err)

    return call
