from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.rollout.addresses import RankScope, receiver_address, tp_rank_of, weight_address

WORKER = {"job": "job", "replica": 0, "node": 0, "dp_rank": 0, "tp_rank": 0, "dp_per_node": 1, "tp_size": 1}


def address(**changes) -> str:
    return weight_address(**{**WORKER, **changes})


def test_no_two_workers_share_an_address():
    world = list(itertools.product(["a", "b"], range(3), range(3), range(4), range(8)))
    addresses = {
        address(job=job, replica=replica, node=node, dp_rank=dp, tp_rank=tp, dp_per_node=4, tp_size=8)
        for job, replica, node, dp, tp in world
    }
    assert len(addresses) == len(world)


def test_numbers_do_not_run_into_each_other():
    assert address(replica=1, node=11) != address(replica=11, node=1)


@given(dp_per_node=st.integers(1, 4), tp_size=st.integers(1, 8), scope=st.sampled_from(RankScope), data=st.data())
def test_both_ends_of_one_worker_derive_one_address(dp_per_node, tp_size, scope, data):
    dp, tp = data.draw(st.integers(0, dp_per_node - 1)), data.draw(st.integers(0, tp_size - 1))
    sizes = {"dp_per_node": dp_per_node, "tp_size": tp_size}
    local_rank = tp if scope is RankScope.TP else dp * tp_size + tp
    sender = address(dp_rank=dp, tp_rank=tp, **sizes)
    receiver = receiver_address(job="job", replica=0, node=0, dp_rank=dp, local_rank=local_rank, scope=scope, **sizes)
    assert sender == receiver


def test_a_missing_dp_rank_is_rank_zero_of_one():
    assert address(dp_rank=None) == address(dp_rank=0)


def test_a_missing_dp_rank_among_several_is_refused():
    with pytest.raises(ValueError, match="give each its rank"):
        address(dp_rank=None, dp_per_node=2)


@pytest.mark.parametrize("changes", [{"dp_rank": 1}, {"tp_rank": 1}, {"tp_rank": -1}, {"replica": -1}, {"node": -1}])
def test_a_rank_outside_its_group_is_refused(changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))} is"):
        address(**changes)


def test_a_node_rank_of_another_worker_is_refused():
    with pytest.raises(ValueError, match="is on data-parallel rank 1, yet dp_rank is 0"):
        tp_rank_of(5, scope=RankScope.NODE, dp_rank=0, dp_per_node=2, tp_size=4)


def test_a_long_job_id_still_fits_a_unix_socket():
    path = address(job="j" * 5000, replica=999, node=999).removeprefix("ipc://")
    assert len(path.encode()) <= 107


def test_a_directory_too_deep_for_a_unix_socket_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="set TMPDIR to a shorter directory"):
        address(base_dir="/" + "d" * 80)


def test_the_address_is_private_to_the_user_and_under_the_given_directory():
    assert address(base_dir="/run/x").startswith(f"ipc:///run/x/rlg-{os.getuid()}/")
