"""What a framework under test answers. Numpy in and out; the reference is the first implementation.

Arrays are float64 or int64 unless said otherwise; `(B, T)` is aligned with the response tokens; in a mask 1 counts.
A subject implements what it can and names it in `capabilities`; a case that needs more does not apply to it.
Methods may raise anything: the case's runner reports an exception as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Capability(StrEnum):
    """Groups of methods that a subject may answer."""

    PADDING = "padding"
    FUNCTIONS = "functions"
    UPDATE = "update"
    LOG_PROBS = "log_probs"
    HEAD_BYTES = "head_bytes"
    GENERATION = "generation"
    DRAFTS = "drafts"  # generation with drafts: `draft_tokens` and `equal_drafter` of a request
    SOCKETS = "sockets"
    TRAINING = "training"


@dataclass(frozen=True, kw_only=True)
class Padded:
    """A row padded to a length: ids `(1, L)` and mask `(1, L)`, both as the framework returned them."""

    ids: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True, kw_only=True)
class FunctionAnswer:
    """Outputs of one pure function by name, and gradients of the sum of `outputs["value"]` by input name."""

    outputs: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainSample:
    """One rollout as the update sees it. `rewards` is the scalar score of the whole response."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    score: float
    group: int
    old_log_probs: tuple[float, ...] | None = None  # None: the subject computes them with its current policy
    reference_log_probs: tuple[float, ...] | None = None  # None: of the subject's own reference policy
    rollout_log_probs: tuple[float, ...] | None = None  # as the engine told them; None: equal to the old ones
    values: tuple[float, ...] | None = None  # of the critic before the update; None: of the subject's own
    baseline: float | None = None  # score of a greedy response to the prompt
    mask: tuple[int, ...] | None = None  # over response tokens; None counts them all


@dataclass(frozen=True, kw_only=True)
class UpdateAnswer:
    """Of one mini-batch through the update. With `apply=False` gradients are computed and nothing is stepped."""

    loss: float
    metrics: Mapping[str, float]
    gradients: Mapping[str, np.ndarray]  # by parameter name, float64; empty when applied
    parameter_change: float  # largest absolute change of a parameter; 0.0 when not applied
    parameters_finite: bool
    # Gradients of the loss by what the models gave to it, `log_probs`, `entropies` and `values`, each `(B, T)`; empty
    # when applied, or when the subject does not tell them.
    token_gradients: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How sequences are laid out for one forward pass."""

    side: str = "right"  # where padding goes: right or left
    extra_padding: int = 0  # columns beyond the longest row
    rows_per_batch: int = 0  # 0: all in one batch
    order: tuple[int, ...] = ()  # a permutation of the rows; empty: as given


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    draft_tokens: int | None = None  # proposed at a time; 0: none, None: as the cell is set
    equal_drafter: bool = False  # drafts are the target's own, so that all of them should be accepted


@dataclass(frozen=True, kw_only=True)
class Generation:
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]  # under the untruncated policy at `temperature`, one a token
    finish_reason: str  # "stop", "length" or "abort"
    drafted: tuple[int, ...] = ()  # at each place behind the last token, over all rounds; empty without drafts
    accepted: tuple[int, ...] = ()  # of those
    target_forwards: int = 0  # passes of the target until it was done


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """One physical rollout worker. `dp_rank` is None where a framework has no data-parallel rank to give."""

    job: str
    replica: int
    node: int
    dp_rank: int | None  # on its node
    tp_rank: int  # counted over `rank_scope`
    dp_per_node: int  # data-parallel workers on one node
    tp_size: int
    rank_scope: str = "tp"  # the tensor-parallel group, or "node": dp_rank * tp_size + the rank in that group


@dataclass(frozen=True, kw_only=True)
class HeadSize:
    """How large one pass from hidden states to log-probs is."""

    positions: int
    hidden: int
    vocabulary: int
    chunk: int  # positions of one chunk


class Endpoint(Protocol):
    """One open end of a weight-sync channel over a real socket."""

    address: str

    def send(self, payload: bytes) -> None:
        """Raises TimeoutError when no peer takes it."""
        ...

    def receive(self, *, timeout_seconds: float) -> bytes | None:
        """None when nothing came in time."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A short training of the whole loop."""

    steps: tuple[Mapping[str, float | None], ...]  # metrics by step
    fingerprint: str  # SHA-256 over names, shapes and bytes of the final parameters
    fingerprint_before: str | None = None  # the same after the warm start, before the first step
    rollout_workers: int | None = None  # how many engines sampled, each in a process of its own from 2 on
    greedy_reward_before: float | None = None  # held-out greedy reward after the warm start, before the first step
    greedy_reward_after: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


class Subject(Protocol):
    """A framework under test, built once for a cell and asked case after case."""

    name: str

    def capabilities(self) -> frozenset[Capability]: ...

    def vocabulary(self) -> tuple[int, int | None, int | None]:
        """Size of the vocabulary, pad id and end id (None when there is none)."""
        ...

    def depth(self) -> tuple[int, int]:
        """Number of layers and hidden size: what rounding grows with."""
        ...

    # PADDING
    def pad(self, tokens: Sequence[int], *, length: int, side: str, pad_id: int | None) -> Padded: ...

    # FUNCTIONS
    def function_names(self) -> tuple[str, ...]:
        """Names of the pure functions it has: `policy_loss.ppo_clip`, `advantage.gae`, `aggregate.token_mean` …"""
        ...

    def function(
        self,
        name: str,
        inputs: Mapping[str, np.ndarray],
        *,
        settings: Mapping[str, Any],
        gradients_of: Sequence[str] = (),
    ) -> FunctionAnswer:
        """Inputs keep their dtype (`float16`, `float32`, `float64`)."""
        ...

    # UPDATE
    def update(
        self,
        samples: Sequence[TrainSample],
        *,
        splits: Sequence[Sequence[int]],
        apply: bool,
        algorithm: Mapping[str, Any] | None = None,
    ) -> UpdateAnswer:
        """One mini-batch, split into micro-batches by row. The subject's state is as before when `apply` is false.

        `algorithm` overrides settings of the cell's algorithm for this update, such as `aggregation`.
        """
        ...

    # LOG_PROBS
    def log_probs(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, layout: Layout, temperature: float
    ) -> list[np.ndarray]:
        """Per row of (prompt, response): log-prob of each response token, `(len(response),)`."""
        ...

    def values(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray] | None:
        """Per row: the critic's value before each response token, `(len(response),)`; None without a critic."""
        ...

    def entropies(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, temperature: float) -> list[np.ndarray]:
        """Per row: entropy of the policy at each response token in nats, `(len(response),)`."""
        ...

    # HEAD_BYTES
    def head_bytes(self, variant: str, size: HeadSize, *, dtype: str, training: bool) -> int:
        """Most bytes of tensors alive above the inputs in a pass from hidden states to log-probs and entropies.

        In training with its backward pass, whose gradients of hidden states and head count too.
        """
        ...

    # GENERATION
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]: ...

    # SOCKETS: both raise OSError with EADDRINUSE when the address is held by another endpoint
    def open_sender(self, place: WorkerPlace) -> Endpoint: ...

    def open_receiver(self, place: WorkerPlace) -> Endpoint: ...

    # TRAINING
    def train(
        self,
        *,
        seed: int,
        steps: int,
        warm_start_steps: int | None = None,
        on_step: Callable[[int, Mapping[str, float | None]], None] | None = None,
        save_to: Path | None = None,
    ) -> TrainingRun:
        """Build anew from `seed`, warm up (None: for as long as the cell says), and train for `steps`.

        The final policy is saved in the folder `save_to`, where one is given.
        """
        ...

    def reset(self) -> None:
        """Back to the state right after building; cases call it when they have moved the parameters."""
        ...

    def close(self) -> None: ...
