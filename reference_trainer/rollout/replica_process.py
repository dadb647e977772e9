"""One rollout replica: a process that holds an engine and does what its pool asks, over its own weight channel.

Requests and answers are messages of `channel.py`, told apart by the header's `kind`. The process ends with the one that
started it, whatever that one dies of and whatever the engine is doing.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from reference_trainer.data.images import as_image, as_plain
from reference_trainer.rollout import addresses
from reference_trainer.rollout.channel import Channel, Message
from reference_trainer.rollout.engine import FinishReason, RolloutEngine, Sample, SamplingRequest
from reference_trainer.weights.transport import Assembler, TransferError

_ANSWER_SECONDS = 60.0  # the pool waits for every answer, so it is taken at once or the pool is gone
_IDLE_SECONDS = 3600.0
_PARENT_POLL_SECONDS = 0.5


class Kind(StrEnum):
    """What a message is."""

    GENERATE = "generate"  # requests
    UPDATE = "update"  # version; buckets follow
    BUCKET = "bucket"  # pieces, payload
    END = "end"  # count: the update is whole
    ABORT = "abort"  # the trainer could not finish the update
    STOP = "stop"
    READY = "ready"  # pid, version
    SAMPLES = "samples"  # samples
    APPLIED = "applied"  # count, version
    FAILED = "failed"  # error: the engine raised


@dataclass(frozen=True, kw_only=True)
class ReplicaStart:
    """All a replica needs to begin. Travels once, when the process starts."""

    index: int
    replicas: int
    job: str
    base_dir: str | None
    threads: int
    child_setup: Callable[[], None] | None
    engine_factory: Callable[[], RolloutEngine]


def start_replica(start: ReplicaStart) -> BaseProcess:
    """Start a replica: in milliseconds by a fork where that is safe, else in a fresh process that imports torch first.

    It is safe from a process with one thread only: then no lock can be held by a thread that the child will lack.
    """
    context: Any  # typeshed gives Process to the concrete contexts alone
    if _thread_count() == 1:
        context = multiprocessing.get_context("fork")
        start = replace(start, child_setup=None)
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "reference_trainer.rollout.native"])
    # Daemonic, so that a trainer that exits without closing its pool does not wait for it.
    process = context.Process(target=_main, args=(start,), name=f"rollout-replica-{start.index}", daemon=True)
    process.start()
    return process


def _main(start: ReplicaStart) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the pool decides when this one ends
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if start.child_setup is not None:
        start.child_setup()
    torch.set_num_threads(start.threads)
    channel = Channel.connect(_own_address(start))
    try:
        engine = start.engine_factory()
    except Exception as error:
        _answer(channel, _failed(error))
        _next_message(channel)  # which can only be to stop
    else:
        _answer(channel, {"kind": Kind.READY, "pid": os.getpid(), "version": engine.weight_version})
        _serve(channel, engine)
        engine.close()
    channel.close()


def encode_request(request: SamplingRequest) -> dict[str, Any]:
    return {**vars(request), "images": [as_plain(image) for image in request.images]}


def decode_request(fields: Mapping[str, Any]) -> SamplingRequest:
    images = tuple(as_image(image) for image in fields["images"])
    return SamplingRequest(**{**fields, "prompt": tuple(fields["prompt"]), "images": images})


def decode_sample(fields: Mapping[str, Any]) -> Sample:
    return Sample(
        tokens=tuple(fields["tokens"]),
        log_probs=tuple(fields["log_probs"]),
        finish_reason=FinishReason(fields["finish_reason"]),
        weight_version=fields["weight_version"],
        drafted=tuple(fields["drafted"]),
        accepted=tuple(fields["accepted"]),
        target_forwards=fields["target_forwards"],
    )


def _own_address(start: ReplicaStart) -> str:
    """Each replica is one data-parallel worker of a node, with a tensor-parallel group of one."""
    return addresses.receiver_address(
        job=start.job,
        replica=0,
        node=0,
        dp_rank=start.index,
        local_rank=0,
        scope=addresses.RankScope.TP,
        dp_per_node=start.replicas,
        tp_size=1,
        base_dir=start.base_dir,
    )


def _serve(channel: Channel, engine: RolloutEngine) -> None:
    while (message := _next_message(channel)).header["kind"] != Kind.STOP:
        if message.header["kind"] == Kind.UPDATE:
            _answer(channel, _updated(channel, engine, version=message.header["version"]))
        else:
            _answer(channel, _generated(engine, message))


def _next_message(channel: Channel) -> Message:
    while (message := channel.receive(timeout_seconds=_IDLE_SECONDS)) is None:
        pass  # idle; when the trainer is gone the watching thread ends the process
    return message


def _generated(engine: RolloutEngine, message: Message) -> dict[str, Any]:
    requests = [decode_request(fields) for fields in message.header["requests"]]
    try:
        samples = engine.generate(requests)
    except Exception as error:
        return _failed(error)
    return {"kind": Kind.SAMPLES, "samples": [vars(sample) for sample in samples]}


def _updated(channel: Channel, engine: RolloutEngine, *, version: int) -> dict[str, Any]:
    stream = _WeightStream(channel)
    try:
        count = engine.update_weights(stream.tensors(), version=version)
    except Exception as error:
        stream.drain()
        return _failed(error)
    stream.drain()
    return {"kind": Kind.APPLIED, "count": count, "version": engine.weight_version}


class _WeightStream:
    """The tensors of one update while they arrive."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._assembler = Assembler()
        self._ended = False

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield whole tensors. Raises TransferError when the trainer gave up or the stream is not whole."""
        while not self._ended:
            message = self._next()
            if message.header["kind"] == Kind.BUCKET:
                yield from self._assembler.take(message.header["pieces"], message.payload)
            elif message.header["kind"] == Kind.ABORT:
                raise TransferError("the trainer broke the update off")
            else:
                self._assembler.finish(message.header["count"])

    def drain(self) -> None:
        """Skip what is left, so that the next message is a new request."""
        while not self._ended:
            self._next()

    def _next(self) -> Message:
        message = _next_message(self._channel)
        self._ended = message.header["kind"] != Kind.BUCKET
        return message


def _answer(channel: Channel, header: Mapping[str, Any]) -> None:
    channel.send(header, timeout_seconds=_ANSWER_SECONDS)


def _failed(error: Exception) -> dict[str, Any]:
    traceback.print_exception(error)  # to the replica's log: the pool gets one line
    return {"kind": Kind.FAILED, "error": f"{type(error).__name__}: {error}"}


def _end_with_parent() -> None:
    """Exit at once when the parent is gone: its pipe closes, or (a sibling may hold that open) we are adopted."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    adopted_by = os.getppid()
    while not multiprocessing.connection.wait([parent.sentinel], timeout=_PARENT_POLL_SECONDS):
        if os.getppid() != adopted_by:
            break
    os._exit(1)


def _thread_count() -> int | None:
    """Threads of this process, those of libraries included; None where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return None
