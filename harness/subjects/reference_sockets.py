"""Both ends of the reference's weight channel, opened as its trainer and its replicas open them."""

from __future__ import annotations

from harness.subjects.protocol import Endpoint, WorkerPlace
from reference_trainer.rollout import addresses
from reference_trainer.rollout.channel import AddressClaim, Channel

_SEND_SECONDS = 5.0


class _Endpoint:
    def __init__(self, channel: Channel) -> None:
        self.address = channel.address
        self._channel = channel

    def send(self, payload: bytes) -> None:
        self._channel.send({}, payload, timeout_seconds=_SEND_SECONDS)

    def receive(self, *, timeout_seconds: float) -> bytes | None:
        message = self._channel.receive(timeout_seconds=timeout_seconds)
        return None if message is None else bytes(message.payload)

    def close(self) -> None:
        self._channel.close()


def open_sender(place: WorkerPlace) -> Endpoint:
    """The trainer's end: it knows the worker by its ranks, and owns the address. Raises AddressInUse (an OSError)."""
    address = addresses.weight_address(
        job=place.job,
        replica=place.replica,
        node=place.node,
        dp_rank=place.dp_rank,
        tp_rank=place.tp_rank,
        dp_per_node=place.dp_per_node,
        tp_size=place.tp_size,
    )
    return _Endpoint(Channel.bind(AddressClaim(address)))


def open_receiver(place: WorkerPlace) -> Endpoint:
    """The worker's end: it knows itself by the local rank that its engine counts."""
    address = addresses.receiver_address(
        job=place.job,
        replica=place.replica,
        node=place.node,
        dp_rank=place.dp_rank,
        local_rank=place.tp_rank,
        scope=addresses.RankScope(place.rank_scope),
        dp_per_node=place.dp_per_node,
        tp_size=place.tp_size,
    )
    return _Endpoint(Channel.connect(address))
