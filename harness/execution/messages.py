"""What runner and child say to each other: JSON over a pipe, never pickle. One dataclass a message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The child is alive in its own process group and waits for a word before it does anything."""

    pid: int


@dataclass(frozen=True, kw_only=True)
class Go:
    """The warden knows the group; the child may start."""


@dataclass(frozen=True, kw_only=True)
class RunCase:
    case: str
    seed: int
    examples: int
    data: Mapping[str, Any] | None = None  # one input to replay; None: draw `examples` of them


@dataclass(frozen=True, kw_only=True)
class Built:
    """The subject stands (`seconds`: what building it took just now); the time limit of the case starts here."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Something moved: an example was judged or a step was trained."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Step:
    seed: int
    step: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How the case ended inside the child."""

    passed: bool
    failure_class: str | None = None
    by_assertion: bool = False
    message: str = ""
    detail: str = ""
    examples: int = 0
    discarded: int = 0
    seconds: float = 0.0
    shrunk_input: Mapping[str, Any] | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The child ran out of memory and will exit: what is left of it is not to be trusted."""

    message: str
    detail: str


Message = Ready | Go | RunCase | Built | Progress | Step | Answer | OutOfMemory
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Message.__args__}


def send(connection: Connection, message: Message) -> None:
    body = {"kind": type(message).__name__, **asdict(message)}
    connection.send_bytes(json.dumps(body).encode())


def receive(connection: Connection) -> Message:
    """Raises EOFError when the other side is gone, ValueError when it does not speak this language."""
    body = json.loads(connection.recv_bytes())
    try:
        return _KINDS[body.pop("kind")](**body)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message: {error}") from error
