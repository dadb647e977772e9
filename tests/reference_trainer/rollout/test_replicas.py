from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from reference_trainer.rollout.channel import AddressInUse
from reference_trainer.rollout.engine import Sample, SamplingRequest
from reference_trainer.rollout.replicas import ReplicaDied, ReplicaError, ReplicaFailed, ReplicaPool, ReplicaTimeout
from reference_trainer.weights.export import export_tensors
from tests.reference_trainer.rollout import fake_engine
from tests.reference_trainer.rollout.fake_engine import HANG, REFUSE, REPORT, FakeEngine, fake_model

OpenPool = Callable[..., ReplicaPool]


@pytest.fixture
def base_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rlg-test-") as path:
        yield Path(path)


@pytest.fixture
def open_pool(base_dir: Path) -> Iterator[OpenPool]:
    """Opens pools of fresh processes: this one has a second thread. Forked ones are tested from `pool_script`."""
    pools: list[ReplicaPool] = []
    finished = threading.Event()
    threading.Thread(target=finished.wait).start()

    def open_one(**changes) -> ReplicaPool:
        given = {"replicas": 2, "engine_factory": FakeEngine, "job": "job", "base_dir": str(base_dir), **changes}
        pools.append(ReplicaPool(**given))
        return pools[-1]

    yield open_one
    for pool in pools:
        pool.close()
    finished.set()


def requests(count: int, first: int = 7) -> list[SamplingRequest]:
    return [SamplingRequest(prompt=(first, 1), seed=seed, max_tokens=3) for seed in range(count)]


def weights(seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    return export_tensors(fake_model(seed))


def alone(count: int, *, seed: int, version: int) -> list[Sample]:
    """What one engine gives in this process."""
    engine = FakeEngine()
    engine.update_weights(weights(seed), version=version)
    return engine.generate(requests(count))


def assert_gone(pids: list[int] | tuple[int, ...], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while living := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < deadline, f"still alive: {living}"
        time.sleep(0.02)


def files(base_dir: Path) -> list[str]:
    return sorted(path.name for path in base_dir.glob("*/*"))


# Sampling


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_samples_come_in_request_order_and_equal_one_engines(open_pool, count):
    pool = open_pool(replicas=3)
    pool.update_weights(weights(1), version=4)
    assert pool.generate(requests(count)) == alone(count, seed=1, version=4)


def test_request_i_goes_to_replica_i_mod_n(open_pool):
    pool = open_pool()
    assert [sample.tokens[0] for sample in pool.generate(requests(5, REPORT))] == [*pool.pids, *pool.pids, pool.pids[0]]


def test_child_setup_and_threads_are_in_place_before_the_engine(open_pool):
    pool = open_pool(child_setup=fake_engine.mark_setup, threads=2)
    assert [sample.tokens[1:] for sample in pool.generate(requests(2, REPORT))] == [(2, 1), (2, 1)]


def test_a_refused_request_names_the_replica_and_the_pool_goes_on(open_pool):
    pool = open_pool()
    bad = [*requests(3), *requests(1, REFUSE)]
    with pytest.raises(ReplicaFailed, match=r"replica 1 .* requests 1, 3, …: ValueError: prompt \(-3, 1\)"):
        pool.generate(bad)
    assert len(pool.generate(requests(3))) == 3


# Weights


@pytest.mark.parametrize("bucket_bytes", [7, 12, 60, 4096])
def test_every_replica_takes_the_weights(open_pool, bucket_bytes):
    pool = open_pool(bucket_bytes=bucket_bytes)
    for version, seed in ((1, 5), (2, 6)):
        assert pool.update_weights(weights(seed), version=version) == 2
        assert pool.weight_version == version
        assert pool.generate(requests(4)) == alone(4, seed=seed, version=version)


def test_an_update_that_does_not_fit_leaves_the_old_version_and_the_pool_usable(open_pool):
    pool = open_pool()
    pool.update_weights(weights(1), version=1)
    with pytest.raises(ReplicaFailed, match="unknown 'extra'"):
        pool.update_weights([*weights(2), ("extra", torch.zeros(1))], version=2)
    assert pool.weight_version == 1
    assert pool.generate(requests(4)) == alone(4, seed=1, version=1)


def test_tensors_that_break_off_leave_the_old_version_and_the_pool_usable(open_pool):
    pool = open_pool(bucket_bytes=8)
    pool.update_weights(weights(1), version=1)

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield next(weights(2))
        raise ZeroDivisionError("the export failed")

    with pytest.raises(ZeroDivisionError, match="the export failed"):
        pool.update_weights(broken(), version=2)
    assert pool.generate(requests(4)) == alone(4, seed=1, version=1)
    assert pool.update_weights(weights(2), version=2) == 2


def test_a_replica_that_applied_another_count_is_named_and_ends_the_pool(open_pool):
    pool = open_pool(engine_factory=fake_engine.MiscountingEngine)
    with pytest.raises(ReplicaError, match=r"replica 1 \(process \d+\) applied 1 tensors as version 3; 2 were sent"):
        pool.update_weights(weights(1), version=3)
    with pytest.raises(ReplicaError, match="can't be used: rollout replica 1"):
        pool.generate(requests(1))


def test_weights_that_only_some_replicas_took_end_the_pool(open_pool):
    pool = open_pool(engine_factory=fake_engine.HalfRefusingEngine)
    with pytest.raises(ReplicaError, match=r"replica 1 .* and others did not: ValueError: no weights") as caught:
        pool.update_weights(weights(1), version=1)
    assert not isinstance(caught.value, ReplicaFailed)
    assert_gone(pool.pids, seconds=2)


# Replicas that die or hang


@pytest.mark.parametrize("victim", [0, 1])
def test_a_replica_killed_while_generating_is_named_at_once(open_pool, base_dir, victim):
    pool = open_pool()
    timer = threading.Timer(0.3, os.kill, (pool.pids[victim], signal.SIGKILL))
    timer.start()
    began = time.monotonic()
    with pytest.raises(ReplicaDied, match=f"replica {victim} .* died by SIGKILL while generating"):
        pool.generate(requests(4, HANG))
    assert time.monotonic() - began < 3
    assert_gone(pool.pids, seconds=1)
    assert files(base_dir) == []


@pytest.mark.parametrize("bucket_bytes", [1 << 16, 1 << 20])
def test_a_replica_killed_while_weights_are_on_their_way_is_named_at_once(open_pool, bucket_bytes):
    pool = open_pool(bucket_bytes=bucket_bytes)

    def murderous() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(64):
            if number == 8:
                os.kill(pool.pids[1], signal.SIGKILL)
            yield f"layer.{number}", torch.zeros(1 << 18)

    began = time.monotonic()
    with pytest.raises(ReplicaDied, match=r"replica 1 .* died by SIGKILL while (taking|applying) weights"):
        pool.update_weights(murderous(), version=1)
    assert time.monotonic() - began < 3
    assert_gone(pool.pids, seconds=1)


def test_a_replica_that_died_between_requests_is_noticed_by_the_next(open_pool):
    pool = open_pool()
    os.kill(pool.pids[0], signal.SIGTERM)
    assert_gone(pool.pids[:1], seconds=2)
    with pytest.raises(ReplicaDied, match=r"replica 0 .* died by SIGTERM"):
        pool.generate(requests(2))


def test_a_replica_that_takes_no_weights_is_named_after_the_time_limit(open_pool):
    pool = open_pool(engine_factory=fake_engine.LazyEngine, bucket_bytes=1 << 16, answer_seconds=0.5)
    large = [(f"layer.{number}", torch.zeros(1 << 16)) for number in range(16)]
    began = time.monotonic()
    with pytest.raises(ReplicaTimeout, match=r"replica 1 .* took no message for 0.5 s while taking weights"):
        pool.update_weights(large, version=1)
    assert time.monotonic() - began < 3
    assert_gone(pool.pids, seconds=1)


def test_a_replica_that_never_answers_is_named_after_the_time_limit(open_pool):
    pool = open_pool(answer_seconds=0.5)
    with pytest.raises(ReplicaTimeout, match=r"replica 0 .* gave no answer within 0.5 s while generating"):
        pool.generate(requests(1, HANG))
    assert_gone(pool.pids, seconds=1)


# Start and end


def test_an_engine_that_can_not_be_built_is_told_with_its_reason(open_pool, base_dir):
    with pytest.raises(ReplicaFailed, match="failed while starting: FileNotFoundError: no weights at /nowhere"):
        open_pool(engine_factory=fake_engine.engine_that_can_not_be_built)
    assert files(base_dir) == []


def test_a_replica_that_dies_while_starting_is_named(open_pool, base_dir):
    with pytest.raises(ReplicaDied, match=r"replica 1 .* died with exit status 3 while starting"):
        open_pool(engine_factory=fake_engine.engine_that_kills_its_process)
    assert files(base_dir) == []


def test_a_replica_that_does_not_come_up_is_named_after_the_time_limit(open_pool):
    open_pool().close()  # so that the fork server's own start is not in the time measured
    with pytest.raises(ReplicaTimeout, match=r"replica 1 .* gave no answer within 2 s while starting"):
        open_pool(engine_factory=fake_engine.engine_that_never_comes, start_seconds=2)


def test_two_live_pools_of_one_job_refuse_to_share(open_pool):
    pool = open_pool()
    with pytest.raises(AddressInUse):
        open_pool()
    assert len(pool.generate(requests(2))) == 2


def test_pools_of_two_jobs_do_not_meet(open_pool):
    pools = {seed: open_pool(job=f"job {seed}") for seed in (1, 2)}
    for seed, pool in pools.items():
        pool.update_weights(weights(seed), version=seed)
    for seed, pool in pools.items():
        assert pool.generate(requests(4)) == alone(4, seed=seed, version=seed)


def test_closing_ends_every_process_and_leaves_no_file(open_pool, base_dir):
    pool = open_pool()
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 1.5
    assert_gone(pool.pids, seconds=0)
    assert files(base_dir) == []
    pool.close()
    with pytest.raises(ReplicaError, match="can't be used: it was closed"):
        pool.generate(requests(1))
    open_pool()


def test_no_pool_without_a_replica(open_pool):
    with pytest.raises(ValueError, match="replicas is 0"):
        open_pool(replicas=0)


# A trainer in a process of its own


def trainer(start: str, mode: str, base_dir: Path) -> subprocess.Popen[str]:
    arguments = ["-m", "tests.reference_trainer.rollout.pool_script", start, mode, "job", str(base_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


def said(process: subprocess.Popen[str]) -> dict:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_a_process_with_one_thread_forks_its_replicas_in_no_time(base_dir):
    process = trainer("forked", "close", base_dir)
    seen = said(process)
    assert seen["seconds"] < 2
    assert seen["applied"] == 2
    # The setup of the parent is there, and is not done a second time.
    assert seen["reports"] == [[pid, 2, 1] for pid in seen["pids"]]
    assert process.wait(timeout=10) == 0
    assert_gone(seen["pids"], seconds=0)
    assert files(base_dir) == []


def test_a_forked_replica_killed_while_generating_is_named_at_once(base_dir):
    process = trainer("forked", "bereave", base_dir)
    seen = said(process)
    for victim in (0, 1):
        assert re.match(rf"rollout replica {victim} .* died by SIGKILL while generating", seen["errors"][victim])
    assert max(seen["error_seconds"]) < 3
    assert process.wait(timeout=10) == 0
    assert files(base_dir) == []


@pytest.mark.parametrize("start", ["forked", "fresh"])
def test_replicas_end_with_a_trainer_that_is_killed_and_do_not_hinder_the_next(base_dir, open_pool, start):
    process = trainer(start, "hang", base_dir)
    seen = said(process)
    assert [report[2] for report in seen["reports"]] == [1 if start == "forked" else 2] * 2
    time.sleep(0.2)  # into the generation
    process.kill()
    process.communicate()
    assert_gone(seen["pids"], seconds=5)
    assert files(base_dir) != [], "a killed trainer leaves its sockets"
    pool = open_pool()
    pool.update_weights(weights(3), version=1)
    assert pool.generate(requests(2)) == alone(2, seed=3, version=1)


def test_a_trainer_that_forgets_to_close_ends_all_the_same(base_dir):
    process = trainer("forked", "forget", base_dir)
    seen = said(process)
    assert process.wait(timeout=10) == 0
    assert_gone(seen["pids"], seconds=5)


# The native engine


def native_engine(seed: int):
    from reference_trainer.config import ModelConfig
    from reference_trainer.models.build import build_policy
    from reference_trainer.rollout.native import NativeEngine

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    model = build_policy(ModelConfig(architecture="qwen3", config=sizes), seed=seed, dtype=torch.float32)
    return NativeEngine(model, eos_id=None, pad_id=0)


def test_native_engines_in_replicas_follow_the_trainers_weights(open_pool):
    pool = open_pool(engine_factory=functools.partial(native_engine, 0), bucket_bytes=1000)
    one = native_engine(1)
    sent = dict(export_tensors(one.model))
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(sent)
    assert pool.update_weights(sent.items(), version=1) == len(sent)
    asked = [SamplingRequest(prompt=(5, 6, 7), seed=seed, max_tokens=4) for seed in range(4)]
    one.weight_version = 1
    for got, expected in zip(pool.generate(asked), one.generate(asked), strict=True):
        assert got.weight_version == 1
        assert got.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
        assert got.tokens == expected.tokens
