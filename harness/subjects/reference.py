"""The reference trainer as a subject: each of its parts asked through the same protocol as anyone else's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.errors import RequestError
from harness.matrix.cell import AXES, Cell
from harness.mutants.activate import Activation
from harness.subjects import reference_functions, reference_head, reference_sockets
from harness.subjects.protocol import (
    Capability,
    Endpoint,
    FunctionAnswer,
    Generation,
    GenerationRequest,
    HeadSize,
    Layout,
    Padded,
    TrainingRun,
    TrainSample,
    UpdateAnswer,
    WorkerPlace,
)
from harness.subjects.reference_settings import trainer_config
from harness.subjects.reference_update import UpdateProbe
from reference_trainer.config import ConfigError
from reference_trainer.data import padding
from reference_trainer.data.layout import Row
from reference_trainer.models.build import transformers_config
from reference_trainer.models.checkpoint import save_policy
from reference_trainer.rollout.engine import RolloutEngine, SamplingRequest
from reference_trainer.rollout.native import NativeEngine
from reference_trainer.rollout.replicas import ReplicaPool
from reference_trainer.rollout.self_drafter import SelfDrafter
from reference_trainer.trainers.factory import build_trainer
from reference_trainer.trainers.sync import SyncTrainer


class ReferenceSubject:
    """Builds a trainer when it is first asked for something that needs one; each training builds its own."""

    name = "reference"

    def __init__(
        self, cell: Cell, *, mutant: str | None = None, hits_path: Path | None = None, threads: int = 1
    ) -> None:
        """Put the mutant in place in this process; the trainers carry it on to theirs."""
        torch.set_num_threads(threads)
        self._cell = cell
        self._activation: Callable[[], None] | None = None
        self._built: tuple[SyncTrainer, UpdateProbe] | None = None
        try:  # a wrong setting is told before anything is built
            self._model = transformers_config(trainer_config(cell).model)
        except ConfigError as error:
            raise RequestError(f"cell {cell.id}: {error}") from None
        if mutant is not None:
            if hits_path is None:
                raise ValueError(f"mutant {mutant} has no file to count its hits in; give hits_path")
            axes = {axis: getattr(cell, axis) for axis in AXES}
            self._activation = Activation(name=mutant, hits_path=str(hits_path), axes=axes)
            self._activation()

    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    def vocabulary(self) -> tuple[int, int | None, int | None]:
        config = self._model.get_text_config()
        return config.vocab_size, config.pad_token_id, config.eos_token_id

    def depth(self) -> tuple[int, int]:
        config = self._model.get_text_config()
        return config.num_hidden_layers, config.hidden_size

    def pad(self, tokens: Sequence[int], *, length: int, side: str, pad_id: int | None) -> Padded:
        ids, mask = padding.pad_row(tokens, length=length, side=side, pad_id=pad_id)  # type: ignore[arg-type]
        return Padded(ids=np.asarray(ids), mask=np.asarray(mask))

    def function_names(self) -> tuple[str, ...]:
        return reference_functions.NAMES

    def function(
        self,
        name: str,
        inputs: Mapping[str, np.ndarray],
        *,
        settings: Mapping[str, Any],
        gradients_of: Sequence[str] = (),
    ) -> FunctionAnswer:
        return reference_functions.call(name, inputs, settings=settings, gradients_of=gradients_of)

    def update(
        self,
        samples: Sequence[TrainSample],
        *,
        splits: Sequence[Sequence[int]],
        apply: bool,
        algorithm: Mapping[str, Any] | None = None,
    ) -> UpdateAnswer:
        return self._trainer[1].update(samples, splits=splits, apply=apply, algorithm=algorithm or {})

    def log_probs(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, layout: Layout, temperature: float
    ) -> list[np.ndarray]:
        order = layout.order or range(len(rows))
        found = self._trainer[0].log_probs(
            [Row(*rows[index]) for index in order],
            side=layout.side,  # type: ignore[arg-type]
            extra_padding=layout.extra_padding,
            rows_per_batch=layout.rows_per_batch,
            temperature=temperature,
        )
        answers: dict[int, np.ndarray] = {index: row.double().numpy() for index, row in zip(order, found, strict=True)}
        return [answers[index] for index in range(len(rows))]

    def values(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray] | None:
        found = self._trainer[1].values([Row(*row) for row in rows])
        return None if found is None else [row.double().numpy() for row in found]

    def entropies(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, temperature: float) -> list[np.ndarray]:
        found = self._trainer[1].entropies([Row(*row) for row in rows], temperature=temperature)
        return [row.double().numpy() for row in found]

    def head_bytes(self, variant: str, size: HeadSize, *, dtype: str, training: bool) -> int:
        return reference_head.peak(variant, size, dtype=dtype, training=training)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        if {request.equal_drafter for request in requests} == {True}:
            engine: RolloutEngine = self._own_drafts()
        else:
            engine = self._trainer[0].engine
        samples = engine.generate(
            [
                SamplingRequest(
                    prompt=tuple(request.prompt),
                    seed=request.seed,
                    max_tokens=request.max_tokens,
                    temperature=request.temperature,
                    top_p=request.top_p,
                    top_k=request.top_k,
                    draft_tokens=request.draft_tokens,
                )
                for request in requests
            ]
        )
        return [
            Generation(
                tokens=sample.tokens,
                log_probs=sample.log_probs,
                finish_reason=str(sample.finish_reason),
                drafted=sample.drafted,
                accepted=sample.accepted,
                target_forwards=sample.target_forwards,
            )
            for sample in samples
        ]

    def _own_drafts(self) -> RolloutEngine:
        """The policy in an engine of its own, drafting for itself."""
        _, pad, end = self.vocabulary()
        return NativeEngine(self._trainer[0].policy, eos_id=end, pad_id=pad, drafter=SelfDrafter())

    def open_sender(self, place: WorkerPlace) -> Endpoint:
        return reference_sockets.open_sender(place)

    def open_receiver(self, place: WorkerPlace) -> Endpoint:
        return reference_sockets.open_receiver(place)

    def train(
        self,
        *,
        seed: int,
        steps: int,
        warm_start_steps: int | None = None,
        on_step: Callable[[int, Mapping[str, float | None]], None] | None = None,
        save_to: Path | None = None,
    ) -> TrainingRun:
        changes: dict[str, Any] = {"steps": steps}
        if warm_start_steps is not None:
            changes["warm_start"] = {**self._cell.settings.get("warm_start", {}), "steps": warm_start_steps}
        try:
            trainer = build_trainer(trainer_config(self._cell, seed=seed, **changes), child_setup=self._activation)
        except ConfigError as error:  # what only the built model or task can refuse
            raise RequestError(f"cell {self._cell.id}: {error}") from None
        try:
            trainer.warm_start()
            fingerprint_before = trainer.fingerprint()
            before = trainer.evaluate()
            metrics = []
            for step in range(steps):
                metrics.append(trainer.step())
                if on_step is not None:
                    on_step(step, metrics[-1])
            if save_to is not None:
                save_policy(trainer.policy, save_to)
            return TrainingRun(
                steps=tuple(metrics),
                fingerprint=trainer.fingerprint(),
                fingerprint_before=fingerprint_before,
                rollout_workers=_workers(trainer.engine),
                greedy_reward_before=before,
                greedy_reward_after=trainer.evaluate(),
                notes={
                    "torch": torch.__version__,
                    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
                    "threads": torch.get_num_threads(),
                },
            )
        finally:
            trainer.close()

    def reset(self) -> None:
        if self._built is not None:
            self._built[1].reset()

    def close(self) -> None:
        if self._built is not None:
            self._built[0].close()
            self._built = None

    @property
    def _trainer(self) -> tuple[SyncTrainer, UpdateProbe]:
        if self._built is None:
            trainer = build_trainer(trainer_config(self._cell), child_setup=self._activation)
            self._built = trainer, UpdateProbe(trainer)
        return self._built


def _workers(engine: RolloutEngine) -> int:
    return len(set(engine.pids)) if isinstance(engine, ReplicaPool) else 1
