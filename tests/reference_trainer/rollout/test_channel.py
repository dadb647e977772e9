from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from reference_trainer.rollout.channel import (
    AddressClaim,
    AddressInUse,
    Channel,
    ChannelError,
    ChannelTimeout,
    wait,
)

OWNER = """
import sys, time
from reference_trainer.rollout.channel import AddressClaim, Channel
channel = Channel.bind(AddressClaim(sys.argv[1]))
print("bound", flush=True)
time.sleep(60)
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rlg-test-") as path:
        yield Path(path) / "own"


@pytest.fixture
def address(directory: Path) -> str:
    return f"ipc://{directory}/worker.sock"


def owner_process(address: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", OWNER, address], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "bound\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_messages_pass_both_ways_in_order(address):
    owner, peer = Channel.bind(AddressClaim(address)), Channel.connect(address)
    for number in range(2):
        owner.send({"n": number}, b"x" * number, timeout_seconds=5)
    for number in range(2):
        message = peer.receive(timeout_seconds=5)
        assert message is not None
        assert (message.header, bytes(message.payload)) == ({"n": number}, b"x" * number)
    peer.send({"text": "ä", "values": [1, 2.5, None]}, timeout_seconds=5)
    answer = owner.receive(timeout_seconds=5)
    assert answer is not None
    assert answer.header == {"text": "ä", "values": [1, 2.5, None]}
    owner.close()
    peer.close()


def test_the_owner_may_bind_after_its_peer_has_connected_and_sent(address):
    peer = Channel.connect(address)
    peer.send({"early": True})
    owner = Channel.bind(AddressClaim(address))
    message = owner.receive(timeout_seconds=5)
    assert message is not None
    assert message.header == {"early": True}
    owner.close()
    peer.close()


def test_a_sent_buffer_may_be_overwritten_at_once(address):
    owner, peer = Channel.bind(AddressClaim(address)), Channel.connect(address)
    buffer = bytearray(b"first" * 1000)
    owner.send({}, memoryview(buffer), timeout_seconds=5)
    buffer[:] = bytes(len(buffer))
    message = peer.receive(timeout_seconds=5)
    assert message is not None
    assert bytes(message.payload) == b"first" * 1000
    owner.close()
    peer.close()


def test_receiving_ends_in_time_when_nothing_comes(address):
    owner = Channel.bind(AddressClaim(address))
    began = time.monotonic()
    assert owner.receive(timeout_seconds=0.1) is None
    assert 0.05 < time.monotonic() - began < 2
    owner.close()


def test_sending_without_a_peer_ends_in_time(address):
    owner = Channel.bind(AddressClaim(address))
    with pytest.raises(ChannelTimeout, match="no peer took a message"):
        owner.send({}, timeout_seconds=0.05)
    owner.close()


def test_a_peer_that_does_not_read_holds_the_sender_up(address):
    owner, peer = Channel.bind(AddressClaim(address)), Channel.connect(address)
    sent = 0
    while sent < 100:
        try:
            owner.send({}, bytes(1 << 20), timeout_seconds=0.3)
        except ChannelTimeout:
            break
        sent += 1
    assert 0 < sent < 10
    owner.close()
    peer.close()


def test_a_second_peer_gets_nothing(address):
    owner, peer = Channel.bind(AddressClaim(address)), Channel.connect(address)
    owner.send({"n": 0}, timeout_seconds=5)
    assert peer.receive(timeout_seconds=5) is not None
    intruder = Channel.connect(address)
    for number in range(4):
        owner.send({"n": number}, timeout_seconds=5)
        assert peer.receive(timeout_seconds=5) is not None
    assert intruder.receive(timeout_seconds=0.1) is None
    for channel in (owner, peer, intruder):
        channel.close()


def test_an_address_in_use_in_this_process_is_refused_and_its_owner_undisturbed(address):
    owner, peer = Channel.bind(AddressClaim(address)), Channel.connect(address)
    with pytest.raises(AddressInUse, match="in use by a live endpoint"):
        AddressClaim(address)
    owner.send({"still": "here"}, timeout_seconds=5)
    assert peer.receive(timeout_seconds=5) is not None
    owner.close()
    peer.close()


def test_an_address_in_use_by_another_process_is_refused_until_it_is_killed(address):
    process = owner_process(address)
    try:
        with pytest.raises(AddressInUse):
            AddressClaim(address)
    finally:
        kill(process)
    assert process.returncode == -signal.SIGKILL
    assert Path(address.removeprefix("ipc://")).is_socket(), "the killed owner leaves its file"
    owner, peer = Channel.bind(AddressClaim(address)), Channel.connect(address)
    owner.send({"restarted": True}, timeout_seconds=5)
    assert peer.receive(timeout_seconds=5) is not None
    owner.close()
    peer.close()


def test_what_killed_owners_left_is_removed_by_the_next_and_what_lives_is_not(address, directory):
    kill(owner_process(address.replace("worker", "killed")))
    living = owner_process(address.replace("worker", "living"))
    try:
        claim = AddressClaim(address)
        assert sorted(path.name for path in directory.iterdir()) == [
            "living.sock",
            "living.sock.lock",
            "worker.sock.lock",
        ]
        claim.release()
    finally:
        kill(living)


def test_a_listener_that_knows_nothing_of_our_lock_is_not_robbed(address, directory):
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address.removeprefix("ipc://"))
        listener.listen()
        with pytest.raises(AddressInUse):
            AddressClaim(address)
    AddressClaim(address).release()


def test_a_peer_reaches_the_restarted_owner(address):
    process = owner_process(address)
    peer = Channel.connect(address)
    kill(process)
    owner = Channel.bind(AddressClaim(address))
    owner.send({"n": 1}, timeout_seconds=5)
    message = peer.receive(timeout_seconds=5)
    assert message is not None
    assert message.header == {"n": 1}
    owner.close()
    peer.close()


def test_closing_leaves_no_file_and_no_thread(address, directory):
    before = len(os.listdir("/proc/self/task"))
    owner, peer = Channel.bind(AddressClaim(address)), Channel.connect(address)
    assert len(os.listdir("/proc/self/task")) > before
    owner.close()
    peer.close()
    assert list(directory.iterdir()) == []
    assert len(os.listdir("/proc/self/task")) == before


def test_of_many_claimants_at_once_exactly_one_wins(address):
    won: list[AddressClaim] = []
    lost: list[AddressInUse] = []
    start = threading.Barrier(8)

    def claim() -> None:
        start.wait()
        try:
            won.append(AddressClaim(address))
        except AddressInUse as error:
            lost.append(error)

    for _ in range(10):
        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        won.pop().release()
        lost.clear()


def test_a_directory_open_to_others_is_refused(address, directory):
    directory.mkdir(mode=0o755)
    with pytest.raises(ChannelError, match="open to other users"):
        AddressClaim(address)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5555", "tcp://127.0.0.1:5555", "ipc://relative.sock", "inproc://x"])
def test_only_unix_sockets_are_used(address):
    with pytest.raises(ChannelError, match="not an ipc"):
        AddressClaim(address)
    with pytest.raises(ChannelError, match="not an ipc"):
        Channel.connect(address)


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([b"\x80"], "1 frames"),
        ([b"\xc1", b""], "not msgpack"),
        ([b"\x93", b""], "not msgpack"),
        ([b"\x01", b""], "int"),
    ],
)
def test_what_is_not_a_message_is_refused(address, frames, says):
    owner = Channel.bind(AddressClaim(address))
    with zmq.Context() as context, context.socket(zmq.PAIR) as stranger:
        stranger.connect(address)
        stranger.send_multipart(frames)
        with pytest.raises(ChannelError, match=says):
            owner.receive(timeout_seconds=5)
    owner.close()


def test_waiting_ends_when_a_descriptor_becomes_readable(address):
    owner = Channel.bind(AddressClaim(address))
    readable, writable = os.pipe()
    assert not wait(timeout_seconds=0.05, receive=[owner], fds=[readable])
    os.close(writable)
    assert wait(timeout_seconds=5, receive=[owner], fds=[readable])
    os.close(readable)
    owner.close()
