"""Cases of the rollout layer: padding, sampling and what the engine says of what it sampled."""

from __future__ import annotations

from harness.cases.base import Case
from harness.subjects.protocol import Capability


class EmptySequence(Case):
    """Responses may be empty: padding, metrics and a train step must all survive it."""

    id = "rollout.empty-sequence"
    origin = "verl#6675"
    axes = ("model", "algorithm")
    needs = frozenset({Capability.PADDING, Capability.UPDATE})


class LogProbAgrees(Case):
    """The engine's log-prob of each sampled token is the trainer's."""

    id = "rollout.logprob-agrees"
    origin = "vllm#48305, trl#6789, NeMo-RL#4243"
    axes = ("model", "engine", "topology")
    needs = frozenset({Capability.GENERATION, Capability.LOG_PROBS})


CASES: tuple[Case, ...] = (EmptySequence(), LogProbAgrees())
