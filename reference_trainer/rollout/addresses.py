"""Where a rollout worker's weights go: one unix socket for each physical worker, and the same one from both ends.

The trainer knows a worker as (job, replica, node, dp, tp). An engine knows itself by a local rank, which some engines
count within the tensor-parallel group and others over the node. With more than one data-parallel worker a node, the
former repeats: read as the latter it sends several workers to one socket (verl#6615, mended in verl#6620).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from enum import StrEnum
from pathlib import Path

_MAX_PATH_BYTES = 107  # sockaddr_un.sun_path, less its terminating zero


class RankScope(StrEnum):
    """What an engine's local rank counts over."""

    TP = "tp"  # its tensor-parallel group
    NODE = "node"  # all workers of the node: dp_rank * tp_size + tp_rank


def weight_address(
    *,
    job: str,
    replica: int,
    node: int,
    dp_rank: int | None,
    tp_rank: int,
    dp_per_node: int,
    tp_size: int,
    base_dir: str | None = None,
) -> str:
    """Return the `ipc://` address of one physical worker. Pure, and injective over (job, replica, node, dp, tp).

    `dp_rank` counts the data-parallel workers of one node, from 0; None, where an engine has no such rank, counts as 0.
    `base_dir` replaces the temporary directory. Raises ValueError for a rank outside its group, and for a directory
    that leaves no room for the name in a unix socket address.
    """
    dp = _dp_rank_of(dp_rank, dp_per_node=dp_per_node)
    _require_within("tp_rank", tp_rank, tp_size)
    _require_within("replica", replica)
    _require_within("node", node)
    digest = hashlib.sha256(job.encode()).hexdigest()[:16]  # a job id is of any length, a socket path is not
    directory = Path(base_dir or tempfile.gettempdir()) / f"rlg-{os.getuid()}"  # short: few bytes are left
    path = f"{directory}/{digest}-r{replica}n{node}d{dp}t{tp_rank}.sock"
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ValueError(
            f"the socket path {path} is longer than the {_MAX_PATH_BYTES} bytes a unix socket may have; "
            "set TMPDIR to a shorter directory"
        )
    return f"ipc://{path}"


def receiver_address(
    *,
    job: str,
    replica: int,
    node: int,
    dp_rank: int | None,
    local_rank: int,
    scope: RankScope,
    dp_per_node: int,
    tp_size: int,
    base_dir: str | None = None,
) -> str:
    """Return the `weight_address` of the worker that knows itself by `local_rank`, counted over `scope`."""
    tp_rank = tp_rank_of(local_rank, scope=scope, dp_rank=dp_rank, dp_per_node=dp_per_node, tp_size=tp_size)
    return weight_address(
        job=job,
        replica=replica,
        node=node,
        dp_rank=dp_rank,
        tp_rank=tp_rank,
        dp_per_node=dp_per_node,
        tp_size=tp_size,
        base_dir=base_dir,
    )


def tp_rank_of(local_rank: int, *, scope: RankScope, dp_rank: int | None, dp_per_node: int, tp_size: int) -> int:
    """Return the rank within the tensor-parallel group of a worker that calls itself `local_rank`.

    Raises ValueError when the local rank is outside its scope or belongs to another data-parallel worker.
    """
    if scope is RankScope.TP:
        _require_within("local_rank", local_rank, tp_size)
        return local_rank
    _require_within("local_rank", local_rank, dp_per_node * tp_size)
    dp, tp_rank = divmod(local_rank, tp_size)
    if dp != _dp_rank_of(dp_rank, dp_per_node=dp_per_node):
        raise ValueError(
            f"local_rank {local_rank} counted over the node is on data-parallel rank {dp}, yet dp_rank is {dp_rank}; "
            "check which scope the engine counts over"
        )
    return tp_rank


def _dp_rank_of(dp_rank: int | None, *, dp_per_node: int) -> int:
    if dp_rank is None and dp_per_node > 1:
        raise ValueError(f"dp_rank is None with {dp_per_node} data-parallel workers a node; give each its rank")
    dp = dp_rank or 0
    _require_within("dp_rank", dp, dp_per_node)
    return dp


def _require_within(name: str, rank: int, size: int | None = None) -> None:
    if rank < 0 or (size is not None and rank >= size):
        limit = "or more" if size is None else f"to {size - 1}"
        raise ValueError(f"{name} is {rank}; expected 0 {limit}")
