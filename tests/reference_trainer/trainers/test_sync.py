from __future__ import annotations

import math

import pytest
import torch

from reference_trainer.data.layout import Row
from reference_trainer.metrics import StepMetrics
from reference_trainer.rollout.engine import SamplingRequest
from reference_trainer.rollout.native import NativeEngine
from reference_trainer.trainers.factory import build_trainer
from reference_trainer.trainers.sync import SyncTrainer
from tests.reference_trainer.tiny import MODELS, config

UNMEASURED = {
    "drafts_proposed",
    "drafts_accepted",
    "drafter_grad_norm",
    "mtp_loss",
    "distillation_loss",
    "correction_weight",
    "correction_fraction",
    "timeouts",
}
OF_THE_CRITIC = {"value_loss", "value_clip_fraction", "critic_grad_norm"}


def run(trainer: SyncTrainer) -> list[dict[str, float | None]]:
    trainer.warm_start()
    return [trainer.step() for _ in range(trainer.config.steps)]


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_two_runs_of_one_configuration_end_in_the_same_bits(model: str, algorithm: str) -> None:
    first, second = (build_trainer(config(model, algorithm, seed=5)) for _ in range(2))
    torch.rand(7)  # the global random state is nobody's input
    assert not torch.are_deterministic_algorithms_enabled()
    start = first.fingerprint()
    steps, again = run(first), run(second)
    assert not torch.are_deterministic_algorithms_enabled()
    assert first.fingerprint() == second.fingerprint() != start
    timings = {name for name in steps[0] if name.endswith(("_seconds", "_bytes"))}
    for step, other in zip(steps, again, strict=True):
        assert {k: v for k, v in step.items() if k not in timings} == {
            k: v for k, v in other.items() if k not in timings
        }


def test_another_seed_gives_another_run() -> None:
    prints = set()
    for seed in (1, 2):
        trainer = build_trainer(config(seed=seed))
        run(trainer)
        prints.add(trainer.fingerprint())
    assert len(prints) == 2


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_step_tells_every_metric_as_a_finite_number(algorithm: str) -> None:
    steps = run(build_trainer(config("gemma4", algorithm)))
    assert [step["step"] for step in steps] == [0, 1]
    for metrics in steps:
        assert metrics.keys() == StepMetrics.__dataclass_fields__.keys() - {"draft_acceptance"}
        absent = {name for name, value in metrics.items() if value is None}
        assert absent == UNMEASURED | (OF_THE_CRITIC if algorithm == "grpo" else set())
        assert all(math.isfinite(value) for value in metrics.values() if value is not None)
        assert metrics["staleness"] == 0
        assert metrics["updates"] == 2
        assert metrics["groups"] == 4
        phases = [metrics[f"{name}_seconds"] for name in ("rollout", "reward", "logprob", "update", "sync")]
        assert sum(value for value in phases if value is not None) <= (metrics["step_seconds"] or 0)
        assert 0 < (metrics["live_bytes"] or 0) <= (metrics["peak_bytes"] or 0)


def test_engine_and_trainer_agree_on_log_probs_at_every_step() -> None:
    for metrics in run(build_trainer(config(rollout={"temperature": 0.7, "top_p": 0.9, "top_k": 50}))):
        assert (metrics["logprob_gap"] or 0) < 1e-4
        assert (metrics["sync_gap"] or 0) < 1e-4


class _DeafEngine(NativeEngine):
    """Says that it took the weights, and did not."""

    def update_weights(self, tensors: object, *, version: int) -> int:
        self.weight_version = version
        return 0


def test_an_engine_that_ignores_its_weights_shows_in_the_gaps() -> None:
    trainer = build_trainer(config(optimizer={"lr": 0.01}))
    trainer.warm_start()
    trainer.engine.__class__ = _DeafEngine
    first, second = trainer.step(), trainer.step()
    assert (first["logprob_gap"] or 0) < 1e-4
    assert (first["sync_gap"] or 0) > 1e-3
    assert (second["logprob_gap"] or 0) > 1e-3


def test_staleness_counts_the_versions_that_a_sample_is_behind() -> None:
    trainer = build_trainer(config())
    trainer.engine.weight_version -= 2
    assert trainer.step()["staleness"] == 2
    assert trainer.step()["staleness"] == 0


def test_the_reference_policy_is_the_one_after_the_warm_start() -> None:
    trainer = build_trainer(config(optimizer={"lr": 0.01}))
    trainer.warm_start()
    first, second = trainer.step(), trainer.step()
    assert first["kl"] == 0.0
    assert (second["kl"] or 0) > 0.0


def test_the_warm_start_lowers_the_loss_of_the_answers() -> None:
    losses = [build_trainer(config(warm_start={"steps": steps, "batch": 16})).warm_start() for steps in (1, 12)]
    assert losses[1] < losses[0]


def test_the_ratio_stays_bit_equal_to_one_in_an_on_policy_step() -> None:
    """One mini-batch, computed in the same chunks before and during the update."""
    metrics = build_trainer(config(batch={"mini_batch": 8, "micro_batch": 4})).step()
    assert metrics["approx_kl"] == 0.0
    assert metrics["clip_fraction"] == 0.0


def test_the_micro_batch_does_not_change_the_run_beyond_rounding() -> None:
    trained = []
    for micro in (1, 4):
        trainer = build_trainer(config("qwen3", "ppo", batch={"micro_batch": micro}, dtype="float64"))
        run(trainer)
        trained.append(dict(trainer.policy.named_parameters()))
    for name, parameter in trained[0].items():
        torch.testing.assert_close(parameter, trained[1][name], rtol=0, atol=1e-7)


def test_log_probs_come_in_the_order_and_length_of_their_rows() -> None:
    trainer = build_trainer(config())
    rows = [Row((1, 2), (3, 4, 5)), Row((6,), ()), Row((7, 8, 9), (10,))]
    for found in (trainer.log_probs(rows), trainer.log_probs(rows, side="left", extra_padding=3, rows_per_batch=2)):
        assert [len(row) for row in found] == [3, 0, 1]
    torch.testing.assert_close(trainer.log_probs(rows)[2], trainer.log_probs(rows[2:], rows_per_batch=1)[0])
    assert trainer.log_probs([]) == []


def test_evaluation_is_greedy_and_repeats() -> None:
    trainer = build_trainer(config())
    trainer.warm_start()
    assert trainer.evaluate() == trainer.evaluate()
    assert 0.0 <= trainer.evaluate() <= 1.0


def test_the_fingerprint_sees_a_single_changed_bit_of_policy_or_critic() -> None:
    trainer = build_trainer(config("qwen3", "ppo"))
    assert trainer.critic is not None
    seen = {trainer.fingerprint()}
    for module in (trainer.policy, trainer.critic):
        parameter = next(module.parameters())
        bits = parameter.data.view(torch.int32).flatten()
        bits[0] ^= 1
        seen.add(trainer.fingerprint())
        bits[0] ^= 1
    assert len(seen) == 3
    assert trainer.fingerprint() in seen


def test_two_replicas_sample_as_one_engine_and_follow_the_policy() -> None:
    """Real processes and sockets."""
    alone, pair = (build_trainer(config(dp=dp, seed=3)) for dp in (1, 2))
    try:
        for trainer in (alone, pair):
            trainer.warm_start()
        requests = [SamplingRequest(prompt=(1, 2, 3 + row), seed=row, max_tokens=3) for row in range(5)]
        drawn = [[sample.tokens for sample in trainer.engine.generate(requests)] for trainer in (alone, pair)]
        assert drawn[0] == drawn[1]
        metrics = pair.step()
        assert (metrics["logprob_gap"] or 0) < 1e-4
        assert (metrics["sync_gap"] or 0) < 1e-4
        assert metrics["staleness"] == 0
    finally:
        pair.close()
