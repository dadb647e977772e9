from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cases.base import Context
from harness.cases.runner import CaseAnswer, run_case
from harness.cases.sockets import OnePeerEach, opened_workers
from harness.matrix.cell import AXES, Cell
from harness.mutants.activate import Activation
from harness.mutants.sockets import MUTANTS
from harness.results.vocabulary import FailureClass
from harness.subjects import reference_sockets
from harness.subjects.protocol import Endpoint, WorkerPlace
from reference_trainer.rollout import addresses

DP1 = Cell(
    subject="reference", hardware="cpu", model="qwen3", algorithm="grpo", mode="sync", engine="native", topology="dp1"
)
DP2 = dataclasses.replace(DP1, topology="dp2")
CASE = OnePeerEach()


class Sockets:
    """A subject that answers for its sockets alone."""

    def __init__(self, open_receiver: Callable[[WorkerPlace], Endpoint] = reference_sockets.open_receiver) -> None:
        self.open_sender = reference_sockets.open_sender
        self.open_receiver = open_receiver


def judge(cell: Cell, subject: Sockets | None = None, *, examples: int = 50) -> CaseAnswer:
    context = Context(cell=cell, subject=cast(Any, subject or Sockets()), seed=3)
    return run_case(CASE, context, seed=3, examples=examples)


@pytest.fixture(autouse=True)
def sound_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant is never taken out again by itself."""
    for name in ("weight_address", "receiver_address"):
        monkeypatch.setattr(addresses, name, getattr(addresses, name))


@pytest.mark.parametrize("cell", [DP1, DP2], ids=lambda cell: cell.topology)
def test_the_reference_passes_and_leaves_no_socket_behind(cell, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="rlg-test-") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        answer = judge(cell)
        assert answer.passed, answer.message
        assert answer.examples == 50
        assert [path for path in Path(base).rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize("cell", [DP1, DP2], ids=lambda cell: cell.topology)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed_by_the_case_in_just_the_cells_it_breaks(mutant, cell, tmp_path):
    hits = tmp_path / "hits"
    axes = {axis: getattr(cell, axis) for axis in AXES}
    Activation(name=mutant.name, hits_path=str(hits), axes=axes)()
    answer = judge(cell)
    assert hits.stat().st_size > 0
    if mutant.breaks(axes):
        assert not answer.passed
        assert answer.by_assertion, answer.message
        assert answer.failure_class is FailureClass.CONTRACT
    else:
        assert answer.passed, answer.message


def test_worlds_have_the_cells_data_parallel_workers():
    @settings(max_examples=30, database=None)
    @given(CASE.inputs(DP2))
    def check(world):
        assert world["dp_per_node"] >= 2
        assert world["sender_has_dp_rank"]

    check()


@settings(max_examples=100, database=None)
@given(data=st.data())
def test_a_world_opens_few_sockets_and_yet_some_that_differ_in_each_coordinate(data):
    world = data.draw(CASE.inputs(DP1))
    workers = opened_workers(world)
    assert len(workers) <= 24
    assert len(set(workers)) == len(workers)
    sizes = {"job": "jobs", "replica": "replicas", "node": "nodes", "dp": "dp_per_node", "tp": "tp_size"}
    for name, size in sizes.items():
        if world[size] > 1:
            twins = {dataclasses.replace(worker, **{name: 0}) for worker in workers}
            assert len(twins) < len(workers), f"no two workers differ in {name} alone"


def answer_for(open_receiver: Callable[[WorkerPlace], Endpoint]) -> CaseAnswer:
    answer = judge(DP2, Sockets(open_receiver))
    assert not answer.passed
    return answer


def test_a_right_address_on_a_wrong_socket_is_caught():
    """What an endpoint says of itself proves nothing; what it receives does."""

    def lying(place: WorkerPlace) -> Endpoint:
        endpoint = reference_sockets.open_receiver(place)
        wrong = reference_sockets.open_receiver(dataclasses.replace(place, dp_rank=0, rank_scope="tp", tp_rank=0))
        wrong.address = endpoint.address
        endpoint.close()
        return wrong

    answer = answer_for(lying)
    assert answer.by_assertion
    assert "has no peer" in answer.message or "received" in answer.message


def test_a_weight_delivered_twice_is_caught():
    class Twice:
        def __init__(self, endpoint: Endpoint) -> None:
            self._endpoint, self.address, self.close = endpoint, endpoint.address, endpoint.close
            self._last: bytes | None = None

        def send(self, payload: bytes) -> None:
            self._endpoint.send(payload)

        def receive(self, *, timeout_seconds: float) -> bytes | None:
            self._last = self._endpoint.receive(timeout_seconds=timeout_seconds) or self._last
            return self._last

    answer = answer_for(lambda place: Twice(reference_sockets.open_receiver(place)))
    assert answer.by_assertion
    assert "after its own weights" in answer.message
    assert "Worker(job=0" in answer.message


def test_an_error_of_another_kind_is_no_verdict_on_the_sockets():
    def broken(place: WorkerPlace) -> Endpoint:
        raise PermissionError(13, "not allowed")

    assert not answer_for(broken).by_assertion
