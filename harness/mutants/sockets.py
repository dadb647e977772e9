"""Defects that the cases of harness/cases/sockets.py must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.mutants.base import Mutant
from harness.mutants.patching import replace_everywhere

if TYPE_CHECKING:
    from reference_trainer.rollout.addresses import RankScope

_CASE = "sockets.one-peer-each"


def _receiver_takes_its_rank_for_a_node_rank(hit: Callable[[], None]) -> None:
    """As in verl#6615: right for an engine that counts over the node, or with one data-parallel worker."""
    from reference_trainer.rollout import addresses

    def receiver_address(
        *, dp_rank: int | None, local_rank: int, scope: RankScope, dp_per_node: int, tp_size: int, **others: Any
    ) -> str:
        hit()
        dp, tp_rank = divmod(local_rank, tp_size)
        return addresses.weight_address(dp_rank=dp, tp_rank=tp_rank, dp_per_node=dp_per_node, tp_size=tp_size, **others)

    replace_everywhere(addresses.receiver_address, receiver_address)


def _job_left_out(hit: Callable[[], None]) -> None:
    _change_address(hit, lambda given: {**given, "job": ""})


def _node_left_out(hit: Callable[[], None]) -> None:
    """Goes unnoticed as long as no two nodes of a job share a temporary directory."""
    _change_address(hit, lambda given: {**given, "node": 0})


def _missing_dp_rank_is_a_rank_of_its_own(hit: Callable[[], None]) -> None:
    """The rank is written into the name before None is taken for 0."""
    _change_address(hit, lambda given: {**given, "job": f"{given['job']}-dp-{given['dp_rank']}"})


def _change_address(hit: Callable[[], None], change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    from reference_trainer.rollout import addresses

    sound = addresses.weight_address

    def weight_address(**given: Any) -> str:
        hit()
        return sound(**change(given))

    replace_everywhere(sound, weight_address)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_CASE}:receiver-uses-tp-local-rank",
        case=_CASE,
        defect="a receiver takes its rank in the tensor-parallel group for its rank on the node",
        install=_receiver_takes_its_rank_for_a_node_rank,
    ),
    Mutant(
        name=f"{_CASE}:job-left-out",
        case=_CASE,
        defect="the address leaves the job out: two jobs of one machine meet",
        install=_job_left_out,
    ),
    Mutant(
        name=f"{_CASE}:node-left-out",
        case=_CASE,
        defect="the address leaves the node out: nodes that share a temporary directory meet",
        install=_node_left_out,
    ),
    Mutant(
        name=f"{_CASE}:missing-dp-rank-stands-apart",
        case=_CASE,
        defect="a dp rank of None gives another address than rank 0 of one",
        install=_missing_dp_rank_is_a_rank_of_its_own,
        only_topology="dp1",  # with more than one data-parallel worker a rank is never missing
    ),
)
