"""Defects that the cases of harness/cases/training.py must catch."""

from __future__ import annotations

import itertools
import os
from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere, replace_method

_TRAINS = "cell.trains"
_REPEATS = "cell.repeats-bit-equal"
_LEARNS = "cell.learns"


def _optimizer_never_steps(hit: Hit) -> None:
    from reference_trainer.trainers import update

    sound = update.Updater._step

    def defective(self: Any, *, moves: bool) -> Any:
        hit()
        return sound(self, moves=False)

    replace_method(update.Updater, "_step", defective)


def _syncs_once(hit: Hit) -> None:
    from reference_trainer.trainers import sync

    sound = sync.SyncTrainer._sync_weights

    def defective(self: Any) -> None:
        hit()
        if self._version == 0:
            sound(self)
        self._version += 1

    replace_method(sync.SyncTrainer, "_sync_weights", defective)


def _version_without_weights(hit: Hit) -> None:
    from reference_trainer.rollout import native

    sound = native.NativeEngine.update_weights

    def defective(self: Any, tensors: Any, *, version: int) -> int:
        hit()
        if version == 1:
            return sound(self, tensors, version=version)
        self.weight_version = version
        return sum(1 for _ in tensors)

    replace_method(native.NativeEngine, "update_weights", defective)


def _second_replica_left_behind(hit: Hit) -> None:
    from reference_trainer.rollout import replicas

    sound = replicas.ReplicaPool._stream

    def defective(self: Any, tensors: Any) -> Any:
        hit()
        buckets, send, previous = [], self._send, getattr(self, "_previous", None)

        def sends_old_ones(index: int, header: Any, payload: bytes = b"", **rest: Any) -> None:
            if index == 0:
                buckets.append(bytes(payload))
            elif previous is not None:
                payload = previous[len(buckets) - 1]
            send(index, header, payload, **rest)

        self._send = sends_old_ones
        try:
            return sound(self, tensors)
        finally:
            del self._send
            self._previous = buckets

    replace_method(replicas.ReplicaPool, "_stream", defective)


def _one_replica_for_all(hit: Hit) -> None:
    from reference_trainer.trainers import factory

    def defective(config: Any, *, child_setup: Any) -> Any:
        hit()
        return factory.build_engine(config)

    replace_everywhere(factory._build_engines, defective)


def _per_layer_embeddings_not_synced(hit: Hit) -> None:
    from reference_trainer.weights import export

    sound = export.export_tensors
    first: dict[str, Any] = {}

    def defective(model: Any, **how: Any) -> Any:
        for name, tensor in sound(model, **how):
            if "per_layer" in name:
                hit()
                tensor = first.setdefault(name, tensor.clone())
            yield name, tensor

    replace_everywhere(sound, defective)


def _unseeded_draw(hit: Hit) -> None:
    import torch

    from reference_trainer.rollout import native

    sound = native.uniform_numbers

    def defective(requests: Any) -> Any:
        hit()
        generator = torch.Generator()
        generator.seed()
        return torch.rand(sound(requests).shape, generator=generator, dtype=torch.float64)

    replace_everywhere(sound, defective)


def _seeds_from_a_counter(hit: Hit) -> None:
    from reference_trainer import seeds

    sound, counter = seeds.derive_seed, itertools.count()

    def defective(root: int, *names: int | str) -> int:
        hit()
        return sound(root, *names, next(counter)) if names[0] == "rollout" else sound(root, *names)

    replace_everywhere(sound, defective)


def _seeds_from_the_process(hit: Hit) -> None:
    from reference_trainer.rollout import native

    sound = native.uniform_numbers

    def defective(requests: Any) -> Any:
        hit()
        return (sound(requests) + os.getpid() * 0.6180339887498949) % 1.0

    replace_everywhere(sound, defective)


def _advantage_sign(hit: Hit) -> None:
    from reference_trainer.trainers import experience

    sound = experience.estimate_advantages

    def defective(algorithm: Any, **given: Any) -> Any:
        hit()
        advantages, returns = sound(algorithm, **given)
        return -advantages, returns

    replace_everywhere(sound, defective)


def _advantages_of_another_row(hit: Hit) -> None:
    from reference_trainer.trainers import experience

    sound = experience.estimate_advantages

    def defective(algorithm: Any, *, mask: Any, **given: Any) -> Any:
        hit()
        advantages, returns = sound(algorithm, mask=mask, **given)
        return advantages[:, :1].roll(1, dims=0) * mask, returns

    replace_everywhere(sound, defective)


def _reference_follows_the_policy(hit: Hit) -> None:
    from reference_trainer.trainers import sync
    from reference_trainer.weights.apply import apply_tensors
    from reference_trainer.weights.export import export_tensors

    sound = sync.SyncTrainer._sync_weights

    def defective(self: Any) -> None:
        hit()
        sound(self)
        if self.reference is not None:
            apply_tensors(self.reference, export_tensors(self.policy, drafter=False))

    replace_method(sync.SyncTrainer, "_sync_weights", defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_TRAINS}:reference-follows-the-policy",
        case=_TRAINS,
        defect="each weight sync goes to the reference policy too",
        install=_reference_follows_the_policy,
    ),
    Mutant(
        name=f"{_TRAINS}:optimizer-never-steps",
        case=_TRAINS,
        defect="gradients are computed and the optimizer is never stepped",
        install=_optimizer_never_steps,
    ),
    Mutant(
        name=f"{_TRAINS}:syncs-once",
        case=_TRAINS,
        defect="after the first, weight syncs are skipped",
        install=_syncs_once,
    ),
    Mutant(
        name=f"{_TRAINS}:version-without-weights",
        case=_TRAINS,
        defect="the engine announces each new weight version and keeps the first weights",
        install=_version_without_weights,
    ),
    Mutant(
        name=f"{_TRAINS}:second-replica-left-behind",
        case=_TRAINS,
        defect="the second replica gets the weights of the sync before",
        install=_second_replica_left_behind,
        only_topology="dp2",
    ),
    Mutant(
        name=f"{_TRAINS}:one-replica-for-all",
        case=_TRAINS,
        defect="one engine samples everything, whatever the topology says",
        install=_one_replica_for_all,
        only_topology="dp2",
    ),
    Mutant(
        name=f"{_TRAINS}:per-layer-embeddings-not-synced",
        case=_TRAINS,
        defect="Gemma4's per-layer embeddings reach the engine as they were at first",
        install=_per_layer_embeddings_not_synced,
        only_model="gemma4",
    ),
    Mutant(
        name=f"{_REPEATS}:unseeded-draw",
        case=_REPEATS,
        defect="sampling draws from a generator that nobody seeded",
        install=_unseeded_draw,
    ),
    Mutant(
        name=f"{_REPEATS}:seeds-from-a-counter",
        case=_REPEATS,
        defect="a request's seed counts the requests that the process has made so far",
        install=_seeds_from_a_counter,
    ),
    Mutant(
        name=f"{_REPEATS}:seeds-from-the-process",
        case=_REPEATS,
        defect="a draw depends on the process id of the replica that makes it",
        install=_seeds_from_the_process,
        only_topology="dp2",
    ),
    Mutant(
        name=f"{_LEARNS}:advantage-sign",
        case=_LEARNS,
        defect="advantages have their sign turned",
        install=_advantage_sign,
    ),
    Mutant(
        name=f"{_LEARNS}:advantages-of-another-row",
        case=_LEARNS,
        defect="each response is trained with the advantage of the one before it",
        install=_advantages_of_another_row,
    ),
)
