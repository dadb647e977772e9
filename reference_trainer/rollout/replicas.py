"""A pool of data-parallel rollout replicas that is itself a rollout engine.

Each replica is a process with an engine of its own. The pool sends it weights and requests over one channel, at the
replica's own weight address. Whatever leaves the replicas in an unknown or uneven state ends the pool: no sample is
ever drawn from a mixture of weight versions.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from reference_trainer.rollout import addresses
from reference_trainer.rollout.channel import AddressClaim, Channel, ChannelTimeout, wait
from reference_trainer.rollout.engine import RolloutEngine, Sample, SamplingRequest
from reference_trainer.rollout.replica_process import Kind, ReplicaStart, decode_sample, encode_request, start_replica
from reference_trainer.weights.transport import DEFAULT_BUCKET_BYTES, pack

_STOP_SECONDS = 2.0


class ReplicaError(RuntimeError):
    """A replica did not do what the pool asked. After anything but ReplicaFailed the pool is closed."""


class ReplicaDied(ReplicaError):
    """A replica's process ended."""


class ReplicaTimeout(ReplicaError):
    """A replica did not take a message, or did not answer, in time."""


class ReplicaFailed(ReplicaError):
    """An engine refused what it was asked, and no weights were changed."""


class ReplicaPool:
    """`replicas` engines behind one, each in its own process on `threads` threads.

    `engine_factory` builds the engine, in the replica. `child_setup`, if any, brings a fresh process to the state of
    this one, and runs there first; a forked one is in that state already (`start_replica`). Both must be picklable.
    `job` names the run: two live pools of one job refuse to share addresses. Open the pool before the trainer's model:
    replicas that are forked would keep a copy of it.
    """

    def __init__(
        self,
        *,
        replicas: int,
        engine_factory: Callable[[], RolloutEngine],
        job: str,
        child_setup: Callable[[], None] | None = None,
        threads: int = 1,
        base_dir: str | None = None,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        start_seconds: float = 120.0,
        answer_seconds: float = 600.0,
    ) -> None:
        """Start all replicas and wait until they are ready.

        Raises ReplicaError when one does not come up, AddressInUse when another live pool has the job's addresses.
        """
        if replicas < 1:
            raise ValueError(f"replicas is {replicas}; a pool has at least one")
        self.weight_version = 0
        self._bucket_bytes = bucket_bytes
        self._answer_seconds = answer_seconds
        self._closed_because: str | None = None
        self._claims: list[AddressClaim] = []
        self._processes: list[BaseProcess] = []
        self._channels: list[Channel] = []
        self.pids: tuple[int, ...] = ()
        try:
            for index in range(replicas):
                self._claims.append(AddressClaim(_address(index, replicas=replicas, job=job, base_dir=base_dir)))
            for index in range(replicas):
                start = ReplicaStart(
                    index=index,
                    replicas=replicas,
                    job=job,
                    base_dir=base_dir,
                    threads=threads,
                    child_setup=child_setup,
                    engine_factory=engine_factory,
                )
                self._processes.append(start_replica(start))
            self.pids = tuple(process.pid or 0 for process in self._processes)
            # Only now: a channel has threads, and a process with threads must not fork.
            self._channels += [Channel.bind(claim) for claim in self._claims]
            self._await_ready(seconds=start_seconds)
        except BaseException:
            self._end(because="it did not start")
            raise

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        """One sample a request, in order. Request i goes to replica i mod N, so a batch is always cut alike.

        Raises ReplicaFailed when an engine refused its requests; the pool goes on.
        """
        count = len(self._processes)
        with self._closing_on_error():
            shares = {index: requests[index::count] for index in range(min(count, len(requests)))}
            for index, share in shares.items():
                message = {"kind": Kind.GENERATE, "requests": [encode_request(request) for request in share]}
                self._send(index, message, doing="taking requests")
            answers = self._collect(shares, doing="generating", seconds=self._answer_seconds)
            for index, answer in answers.items():
                if answer["kind"] == Kind.FAILED:
                    raise ReplicaFailed(
                        f"{self._name(index)} failed while generating for requests {index}, {index + count}, …: "
                        f"{answer['error']}"
                    )
            samples: dict[int, Sample] = {}
            for index, share in shares.items():
                drawn = [decode_sample(fields) for fields in answers[index]["samples"]]
                if len(drawn) != len(share):
                    raise ReplicaError(f"{self._name(index)} gave {len(drawn)} samples for {len(share)} requests")
                samples |= {index + count * place: sample for place, sample in enumerate(drawn)}
            return [samples[place] for place in range(len(requests))]

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        """Send the tensors to every replica and wait until each has applied all of them; return how many.

        Raises ReplicaFailed when every engine refused them, and whatever `tensors` raises; after either the pool goes
        on with the old version.
        """
        everyone = range(len(self._processes))
        counted = _Counted(tensors)
        with self._closing_on_error():
            for index in everyone:
                self._send(index, {"kind": Kind.UPDATE, "version": version}, doing="taking weights")
            interrupted = self._stream(counted)
            answers = self._collect(everyone, doing="applying weights", seconds=self._answer_seconds)
            if interrupted is None:
                self._require_applied(answers, count=counted.count, version=version)
            elif any(answer["kind"] != Kind.FAILED for answer in answers.values()):
                raise ReplicaError("an engine applied an update that the trainer broke off") from interrupted
        if interrupted is not None:
            raise interrupted
        self.weight_version = version
        return counted.count

    def close(self) -> None:
        """End all replicas and remove their sockets. Does nothing the second time."""
        if self._closed_because is None:
            self._end(because="it was closed", grace_seconds=_STOP_SECONDS)

    def _await_ready(self, *, seconds: float) -> None:
        answers = self._collect(range(len(self._processes)), doing="starting", seconds=seconds)
        for index, answer in sorted(answers.items()):
            if answer["kind"] == Kind.FAILED:
                raise ReplicaFailed(f"{self._name(index)} failed while starting: {answer['error']}")
            if answer["pid"] != self.pids[index]:
                raise ReplicaError(f"process {answer['pid']} answered at the address of {self._name(index)}")
        versions = {answer["version"] for answer in answers.values()}
        if len(versions) > 1:
            raise ReplicaError(f"the replicas start with different weight versions: {sorted(versions)}")
        self.weight_version = versions.pop()

    def _stream(self, tensors: _Counted) -> Exception | None:
        """Send every bucket to all replicas, as fast as the slowest takes them; return what `tensors` raised, if so."""
        buckets = pack(tensors, bucket_bytes=self._bucket_bytes)
        while True:
            try:
                bucket = next(buckets, None)
            except Exception as error:
                self._broadcast({"kind": Kind.ABORT})
                return error
            if bucket is None:
                break
            self._broadcast({"kind": Kind.BUCKET, "pieces": bucket.pieces}, bucket.payload)
        self._broadcast({"kind": Kind.END, "count": tensors.count})
        return None

    def _require_applied(self, answers: Mapping[int, Mapping[str, Any]], *, count: int, version: int) -> None:
        failed = {index: answer["error"] for index, answer in answers.items() if answer["kind"] == Kind.FAILED}
        if len(failed) == len(answers):
            raise ReplicaFailed(f"{self._name(0)} failed while applying weights: {failed[0]}")
        for index, error in failed.items():
            raise ReplicaError(f"{self._name(index)} failed while applying weights, and others did not: {error}")
        for index, answer in answers.items():
            if (answer["count"], answer["version"]) != (count, version):
                raise ReplicaError(
                    f"{self._name(index)} applied {answer['count']} tensors as version {answer['version']}; "
                    f"{count} were sent as version {version}"
                )

    def _broadcast(self, header: Mapping[str, Any], payload: bytes | memoryview = b"") -> None:
        for index in range(len(self._processes)):
            self._send(index, header, payload, doing="taking weights")

    def _send(self, index: int, header: Mapping[str, Any], payload: bytes | memoryview = b"", *, doing: str) -> None:
        channel, deadline = self._channels[index], time.monotonic() + self._answer_seconds
        while True:
            wait(timeout_seconds=deadline - time.monotonic(), send=[channel], fds=self._sentinels)
            self._require_alive(doing=doing)
            try:
                return channel.send(header, payload)
            except ChannelTimeout:
                if time.monotonic() > deadline:
                    raise ReplicaTimeout(
                        f"{self._name(index)} took no message for {self._answer_seconds:g} s while {doing}"
                    ) from None

    def _collect(self, indices: Iterable[int], *, doing: str, seconds: float) -> dict[int, Mapping[str, Any]]:
        """One answer of each replica in `indices`."""
        answers: dict[int, Mapping[str, Any]] = {}
        missing, deadline = sorted(indices), time.monotonic() + seconds
        while missing:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ReplicaTimeout(f"{self._name(missing[0])} gave no answer within {seconds:g} s while {doing}")
            wait(timeout_seconds=left, receive=[self._channels[index] for index in missing], fds=self._sentinels)
            for index in tuple(missing):
                message = self._channels[index].receive()
                if message is not None:
                    answers[index] = message.header
                    missing.remove(index)
            self._require_alive(doing=doing)
        return answers

    @property
    def _sentinels(self) -> list[int]:
        return [process.sentinel for process in self._processes]

    def _require_alive(self, *, doing: str) -> None:
        ended = wait_for_any(self._sentinels, timeout=0)
        for index, process in enumerate(self._processes):
            if process.sentinel in ended:
                process.join(timeout=_STOP_SECONDS)
                raise ReplicaDied(f"{self._name(index)} died{_exit_words(process.exitcode)} while {doing}")

    def _name(self, index: int) -> str:
        return f"rollout replica {index} (process {self.pids[index]})"

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Whatever escapes the block, but for an orderly refusal, leaves answers outstanding: the pool ends with it."""
        if self._closed_because is not None:
            raise ReplicaError(f"the pool of rollout replicas can't be used: {self._closed_because}; open a new one")
        try:
            yield
        except ReplicaFailed:
            raise
        except BaseException as error:
            self._end(because=str(error) or type(error).__name__)
            raise

    def _end(self, *, because: str, grace_seconds: float = 0.0) -> None:
        self._closed_because = because
        if grace_seconds:
            for channel in self._channels:
                with suppress(ChannelTimeout):  # a busy replica that takes no message is killed below
                    channel.send({"kind": Kind.STOP})
        deadline = time.monotonic() + grace_seconds
        for process in self._processes:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.kill()
            process.join(timeout=_STOP_SECONDS)
        for channel in self._channels:
            channel.close()
        for claim in self._claims:
            claim.release()


class _Counted:
    """Counts what is taken from an iterable."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._tensors = tensors
        self.count = 0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for named in self._tensors:
            self.count += 1
            yield named


def _address(index: int, *, replicas: int, job: str, base_dir: str | None) -> str:
    return addresses.weight_address(
        job=job,
        replica=0,
        node=0,
        dp_rank=index,
        tp_rank=0,
        dp_per_node=replicas,
        tp_size=1,
        base_dir=base_dir,
    )


def _exit_words(code: int | None) -> str:
    if code is None:
        return ""
    return f" by {signal.Signals(-code).name}" if code < 0 else f" with exit status {code}"
