"""Cases of the sockets that carry weights to rollout workers."""

from __future__ import annotations

import errno
import itertools
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from harness.cases.base import Case, Context, Violation, require
from harness.matrix.cell import Cell
from harness.subjects.protocol import Capability, Endpoint, Subject, WorkerPlace

_MOST_OPENED = 24  # workers of one world whose sockets are opened: a world may have hundreds
_RECEIVE_SECONDS = 5.0


@dataclass(frozen=True, order=True)
class Worker:
    """Who a physical worker is. Everything else of a place is how somebody describes it."""

    job: int
    replica: int
    node: int
    dp: int
    tp: int

    @property
    def payload(self) -> bytes:
        return repr(self).encode()


class OnePeerEach(Case):
    """Each rollout worker's weights reach it and nobody else, however its engine counts its rank.

    When it fails, compare how the two ends of the named worker derive its address: which of job, replica, node, dp and
    tp rank does one of them leave out, or count differently? Real sockets are opened at both ends of up to 24 workers.
    """

    id = "sockets.one-peer-each"
    origin = "verl#6620, verl#6615, verl#6246, verl-omni#349"
    axes = ("topology",)
    needs = frozenset({Capability.SOCKETS})

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        """Worlds with at least the cell's data-parallel workers on a node."""
        dp = st.integers(cell.dp, max(4, cell.dp))
        return dp.flatmap(_worlds)

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        run = uuid.uuid4().hex  # the same world is under test in other processes of this machine
        subject, workers = context.subject, opened_workers(data)
        with ExitStack() as opened:
            if data["stale_socket"]:
                _leave_stale_socket(subject, workers[0], _place(workers[0], data, run=run))
            senders = {
                worker: _open(subject.open_sender, "sender", worker, _place(worker, data, run=run), opened)
                for worker in workers
            }
            receivers = {
                worker: _open(subject.open_receiver, "receiver", worker, _engine_place(worker, data, run=run), opened)
                for worker in workers
            }
            _require_own_addresses(senders, receivers)
            _require_own_payloads(senders, receivers)


def _worlds(dp: int) -> st.SearchStrategy[dict[str, Any]]:
    # A framework may leave the data-parallel rank out, at either end, only where there is but one.
    given = st.just(True) if dp > 1 else st.booleans()
    return st.fixed_dictionaries(
        {
            "jobs": st.integers(1, 2),
            "replicas": st.integers(1, 3),
            "nodes": st.integers(1, 3),
            "dp_per_node": st.just(dp),
            "tp_size": st.integers(1, 8),
            "rank_scope": st.sampled_from(["tp", "node"]),
            "sender_has_dp_rank": given,
            "receiver_has_dp_rank": given,
            "stale_socket": st.booleans(),
            "centre": st.integers(0, 999),
            "others": st.lists(st.integers(0, 999), max_size=_MOST_OPENED),
        }
    )


def opened_workers(data: Mapping[str, Any]) -> list[Worker]:
    """The workers whose sockets are opened: all of a small world.

    Of a large one, some worker (`centre`), those that differ from it in one coordinate, so that an address which leaves
    one out is always seen, and as many `others` as there is room for.
    """
    sizes = [data[name] for name in ("jobs", "replicas", "nodes", "dp_per_node", "tp_size")]
    world = [Worker(*ranks) for ranks in itertools.product(*map(range, sizes))]
    if len(world) <= _MOST_OPENED:
        return world
    centre = world[data["centre"] % len(world)]
    chosen = [worker for worker in world if _differences(worker, centre) <= 1]
    chosen += [world[number % len(world)] for number in data["others"]]
    return sorted(dict.fromkeys(chosen[:_MOST_OPENED]))


def _differences(left: Worker, right: Worker) -> int:
    return sum(getattr(left, name) != getattr(right, name) for name in ("job", "replica", "node", "dp", "tp"))


def _place(worker: Worker, data: Mapping[str, Any], *, run: str) -> WorkerPlace:
    """The worker as the trainer describes it."""
    return WorkerPlace(
        job=f"{run}-job-{worker.job}",
        replica=worker.replica,
        node=worker.node,
        dp_rank=worker.dp if data["sender_has_dp_rank"] else None,
        tp_rank=worker.tp,
        dp_per_node=data["dp_per_node"],
        tp_size=data["tp_size"],
    )


def _engine_place(worker: Worker, data: Mapping[str, Any], *, run: str) -> WorkerPlace:
    """The same worker as its engine describes it."""
    over_node = data["rank_scope"] == "node"
    return WorkerPlace(
        job=f"{run}-job-{worker.job}",
        replica=worker.replica,
        node=worker.node,
        dp_rank=worker.dp if data["receiver_has_dp_rank"] else None,
        tp_rank=worker.dp * data["tp_size"] + worker.tp if over_node else worker.tp,
        dp_per_node=data["dp_per_node"],
        tp_size=data["tp_size"],
        rank_scope=data["rank_scope"],
    )


def _open(
    open_endpoint: Callable[[WorkerPlace], Endpoint],
    kind: str,
    worker: Worker,
    place: WorkerPlace,
    opened: ExitStack,
) -> Endpoint:
    try:
        endpoint = open_endpoint(place)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise Violation(f"the {kind} of {worker} can't open, its address is taken: {error}") from error
    opened.callback(endpoint.close)
    return endpoint


def _leave_stale_socket(subject: Subject, worker: Worker, place: WorkerPlace) -> None:
    """Leave the file that a killed owner of the place's address would have left. Other kinds of address have none."""
    with ExitStack() as opened:
        endpoint = _open(subject.open_sender, "sender", worker, place, opened)
    path = endpoint.address.removeprefix("ipc://")
    if path == endpoint.address:
        return
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(path)


def _require_own_addresses(senders: Mapping[Worker, Endpoint], receivers: Mapping[Worker, Endpoint]) -> None:
    owners: dict[str, Worker] = {}
    for worker, sender in senders.items():
        owner = owners.setdefault(sender.address, worker)
        require(owner == worker, f"{owner} and {worker} send from the same address {sender.address}")
    for worker, receiver in receivers.items():
        require(
            receiver.address == senders[worker].address,
            f"{worker} listens at {receiver.address}, which is the address of "
            f"{owners.get(receiver.address, 'nobody')}; its weights go to {senders[worker].address}",
        )


def _require_own_payloads(senders: Mapping[Worker, Endpoint], receivers: Mapping[Worker, Endpoint]) -> None:
    for worker, sender in senders.items():
        try:
            sender.send(worker.payload)
        except TimeoutError as error:
            raise Violation(f"the sender of {worker} has no peer: {error}") from error
    for worker, receiver in receivers.items():
        got = receiver.receive(timeout_seconds=_RECEIVE_SECONDS)
        require(got == worker.payload, f"{worker} received {_words(got, senders)} instead of its own weights")
    for worker, receiver in receivers.items():
        more = receiver.receive(timeout_seconds=0.0)
        require(more is None, f"{worker} received {_words(more, senders)} after its own weights")


def _words(payload: bytes | None, workers: Iterable[Worker]) -> str:
    owner = next((worker for worker in workers if worker.payload == payload), None)
    return "nothing" if payload is None else f"the weights of {owner}" if owner else f"{len(payload)} unknown bytes"


CASES: tuple[Case, ...] = (OnePeerEach(),)
