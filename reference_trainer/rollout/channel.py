"""A two-way link between exactly two processes of one machine: a ZeroMQ PAIR over a unix socket.

A message is a msgpack header and raw bytes; nothing that arrives is ever unpickled. One end binds, under a lock that
the kernel drops with its owner: a file that a killed owner left is no hindrance, an owner that lives is never robbed
(libzmq itself would unlink the file of a live socket and bind over it).
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import zmq

_QUEUED_MESSAGES = 2  # in each direction: a peer that does not read holds the sender up instead of filling memory
_RECONNECT_MS = 10
_LOCK_SECONDS = 0.2  # longer than anybody holds the lock of an address that it does not own


class ChannelError(RuntimeError):
    """What arrived is not a message, or the address is not one that a channel may use."""


class ChannelTimeout(TimeoutError):
    """The peer did not take a message in time, or there is no peer."""


class AddressInUse(OSError):
    """Another endpoint, here or in another process, holds the address."""

    def __init__(self, address: str) -> None:
        super().__init__(
            errno.EADDRINUSE,
            f"{address} is in use by a live endpoint; give this run a job id of its own or end the other run",
        )


@dataclass(frozen=True, kw_only=True)
class Message:
    """`payload` is a view of the received frame: it lives as long as the message does."""

    header: Mapping[str, Any]
    payload: memoryview


class AddressClaim:
    """The right to bind an address. Held by at most one endpoint on the machine, until `release` or death."""

    def __init__(self, address: str) -> None:
        """Raises AddressInUse, and ChannelError when the address is no `ipc://` path in a directory of one's own."""
        self.address = address
        self._path = _socket_path(address)
        _make_private(self._path.parent)
        _remove_leftovers(self._path.parent)
        if _answers(self._path):
            raise AddressInUse(address)
        deadline = time.monotonic() + _LOCK_SECONDS
        while (fd := _try_lock(_lock_path(self._path))) is None:
            if time.monotonic() > deadline:
                raise AddressInUse(address)
            time.sleep(_LOCK_SECONDS / 10)
        self._fd = fd
        self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the socket file and let others bind. Does nothing the second time."""
        if self._fd < 0:
            return
        _remove_and_unlock(self._path, self._fd)
        self._fd = -1


class Channel:
    """One end. Messages arrive whole and in order; what was not taken when an end closes is dropped."""

    def __init__(self, address: str, claim: AddressClaim | None) -> None:
        self.address = address
        self._claim = claim
        self._context = zmq.Context()  # one each, so that no thread of it outlives `close`
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.set_hwm(_QUEUED_MESSAGES)

    @classmethod
    def bind(cls, claim: AddressClaim) -> Channel:
        """Open the end that owns the address; closing it releases the claim."""
        channel = cls(claim.address, claim)
        try:
            channel._socket.bind(claim.address)
        except zmq.ZMQError:
            channel.close()
            raise
        return channel

    @classmethod
    def connect(cls, address: str) -> Channel:
        """Open the other end. The owner may bind later."""
        _socket_path(address)
        channel = cls(address, None)
        channel._socket.connect(address)
        return channel

    def send(
        self, header: Mapping[str, Any], payload: bytes | memoryview = b"", *, timeout_seconds: float = 0.0
    ) -> None:
        """Hand a message over; `payload` may be reused at once. Raises ChannelTimeout."""
        try:
            if not self._socket.poll(_milliseconds(timeout_seconds), zmq.POLLOUT):
                raise zmq.Again
            self._socket.send_multipart([msgpack.packb(header), payload], flags=zmq.NOBLOCK)
        except zmq.Again:
            raise ChannelTimeout(f"no peer took a message at {self.address} within {timeout_seconds:g} s") from None

    def receive(self, *, timeout_seconds: float = 0.0) -> Message | None:
        """Return the next message, or None when none came in time. Raises ChannelError for what is not a message."""
        if not self._socket.poll(_milliseconds(timeout_seconds), zmq.POLLIN):
            return None
        frames = self._socket.recv_multipart(copy=False)
        if len(frames) != 2:
            raise ChannelError(f"{self.address} received {len(frames)} frames; a message has a header and a payload")
        try:
            header = msgpack.unpackb(frames[0].buffer)
        except ValueError as error:
            raise ChannelError(f"{self.address} received a header that is not msgpack: {error}") from None
        if not isinstance(header, dict):
            raise ChannelError(f"{self.address} received a header that is a {type(header).__name__}, not a mapping")
        return Message(header=header, payload=frames[1].buffer)

    def close(self) -> None:
        """Close this end and, when it owns the address, give that free."""
        self._socket.close()
        self._context.term()
        if self._claim is not None:
            self._claim.release()


def wait(
    *,
    timeout_seconds: float,
    receive: Iterable[Channel] = (),
    send: Iterable[Channel] = (),
    fds: Iterable[int] = (),
) -> bool:
    """Wait until a channel can be received from or sent to, or a descriptor is readable. False: nothing in time."""
    poller = zmq.Poller()
    for channel in receive:
        poller.register(channel._socket, zmq.POLLIN)
    for channel in send:
        poller.register(channel._socket, zmq.POLLOUT)
    for fd in fds:
        poller.register(fd, zmq.POLLIN)
    return bool(poller.poll(_milliseconds(timeout_seconds)))


def _milliseconds(seconds: float) -> int:
    return math.ceil(max(0.0, seconds) * 1000)


def _socket_path(address: str) -> Path:
    path = address.removeprefix("ipc://")
    if path == address or not path.startswith("/"):
        raise ChannelError(f"{address!r} is not an ipc:///absolute/path address; weights never leave the machine")
    return Path(path)


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ChannelError(f"{directory} is open to other users; remove it, or set TMPDIR to a directory of your own")


def _answers(path: Path) -> bool:
    """Whether somebody listens, with or without our lock."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _try_lock(path: Path) -> int | None:
    """Lock the file, creating it, until the returned descriptor is closed; None when somebody else holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        if _is_same_file(fd, path):
            return fd
        os.close(fd)  # its former owner removed it between our open and our lock


def _remove_and_unlock(path: Path, fd: int) -> None:
    path.unlink(missing_ok=True)
    _lock_path(path).unlink(missing_ok=True)
    fcntl.flock(fd, fcntl.LOCK_UN)  # explicitly: a forked child may hold a duplicate of the descriptor
    os.close(fd)


def _remove_leftovers(directory: Path) -> None:
    """Remove what owners left that were killed: their locks are free."""
    for lock in directory.glob("*.sock.lock"):
        fd = _try_lock(lock)
        if fd is not None:
            _remove_and_unlock(lock.with_suffix(""), fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
