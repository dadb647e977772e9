"""A trainer as its own process: opens a pool, says what it sees in a line of JSON, and then does as `mode` says.

python -m tests.reference_trainer.rollout.pool_script {forked|fresh} {close|forget|hang|bereave} JOB BASE_DIR
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

from reference_trainer.rollout.engine import SamplingRequest
from reference_trainer.rollout.replicas import ReplicaDied, ReplicaPool
from reference_trainer.weights.export import export_tensors
from tests.reference_trainer.rollout.fake_engine import HANG, REPORT, FakeEngine, fake_model, mark_setup


def open_pool(job: str, base_dir: str) -> ReplicaPool:
    return ReplicaPool(
        replicas=2, engine_factory=FakeEngine, job=job, base_dir=base_dir, child_setup=mark_setup, threads=2
    )


def requests(first: int) -> list[SamplingRequest]:
    return [SamplingRequest(prompt=(first,), seed=0, max_tokens=1)] * 2


def kill_while_generating(pool: ReplicaPool, victim: int) -> tuple[str, float]:
    """The error, and the seconds from the kill to it."""
    # From another process: a second thread would have the next pool start fresh ones.
    command = f"import os, time; time.sleep(0.3); os.kill({pool.pids[victim]}, 9)"
    subprocess.Popen([sys.executable, "-S", "-c", command])
    began = time.monotonic()
    try:
        pool.generate(requests(HANG))
    except ReplicaDied as error:
        return str(error), time.monotonic() - began - 0.3
    raise AssertionError("nobody died")


def main(start: str, mode: str, job: str, base_dir: str) -> None:
    mark_setup()
    if start == "fresh":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if mode == "bereave":
        errors = [kill_while_generating(open_pool(job, base_dir), victim) for victim in (0, 1)]
        print(json.dumps({"errors": [e for e, _ in errors], "error_seconds": [s for _, s in errors]}), flush=True)
        return
    began = time.monotonic()
    pool = open_pool(job, base_dir)
    seconds = time.monotonic() - began
    applied = pool.update_weights(export_tensors(fake_model(1)), version=1)
    reports = pool.generate(requests(REPORT))
    seen = {"pids": pool.pids, "seconds": seconds, "applied": applied, "reports": [r.tokens for r in reports]}
    print(json.dumps(seen), flush=True)
    if mode == "hang":
        pool.generate(requests(HANG))
    if mode == "close":
        pool.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
