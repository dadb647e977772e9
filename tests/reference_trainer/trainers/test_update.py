from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
import torch

from reference_trainer.algorithms.aggregation import Aggregation
from reference_trainer.trainers.experience import Trajectory
from reference_trainer.trainers.factory import build_trainer
from reference_trainer.trainers.sync import SyncTrainer
from reference_trainer.trainers.update import UpdateResult
from tests.reference_trainer.tiny import config

ALL_TERMS: dict[str, Any] = {"kl": "k3", "kl_coefficient": 0.1, "entropy_coefficient": 0.01}
SPLITS: list[list[list[int]]] = [
    [[0, 1, 2, 3, 4]],
    [[0], [1], [2], [3], [4]],
    [[4, 0], [], [2, 1, 3]],
    [[3], [0, 1, 2, 4]],
]


def trajectories(*, empty: bool = False) -> list[Trajectory]:
    """Ragged responses, a hole in a mask, an empty response, one that is masked away."""
    responses = [(50, 51, 52), (60,), (), (70, 71), (80, 81, 82)]
    masks = [None, None, None, (0, 0), (1, 0, 1)]
    return [
        Trajectory(
            prompt=(1, 2, 3 + row),
            response=() if empty else response,
            score=float(row % 2),
            group=row // 2,
            old_log_probs=None if empty else tuple(-5.5 - 0.3 * t for t in range(len(response))),
            mask=None if empty else mask,
        )
        for row, (response, mask) in enumerate(zip(responses, masks, strict=True))
    ]


def trainer(algorithm: str, **changes: Any) -> SyncTrainer:
    sections: dict[str, Any] = {"algorithm": {**ALL_TERMS, **changes}, "dtype": "float64"}
    return build_trainer(config("qwen3", algorithm, **sections))


@pytest.fixture(scope="module", params=["ppo", "grpo"])
def shared(request: pytest.FixtureRequest) -> Iterator[SyncTrainer]:
    built = trainer(request.param)
    yield built
    built.close()


def gradients_of(built: SyncTrainer, splits: Sequence[Sequence[int]]) -> UpdateResult:
    return built.update(trajectories(), splits=splits, apply=False)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("empty_row", ["left_out", "counted"])
def test_loss_metrics_and_gradients_do_not_depend_on_the_split(
    algorithm: str, aggregation: str, empty_row: str
) -> None:
    built = trainer(algorithm, aggregation=aggregation, empty_row=empty_row)
    whole, *others = [gradients_of(built, splits) for splits in SPLITS]
    assert whole.loss != 0.0
    assert any(bool(gradient.any()) for gradient in whole.gradients.values())
    for other in others:
        assert other.loss == pytest.approx(whole.loss, rel=1e-12)
        assert other.metrics == pytest.approx(whole.metrics, rel=1e-9, abs=1e-12)
        assert other.gradients.keys() == whole.gradients.keys()
        for name, gradient in whole.gradients.items():
            torch.testing.assert_close(other.gradients[name], gradient, rtol=1e-9, atol=1e-13)


def test_the_gradient_is_that_of_the_loss(shared: SyncTrainer) -> None:
    """A central difference along the gradient itself, whose slope is the gradient's norm."""
    gradients = gradients_of(shared, SPLITS[2]).gradients
    parameters = dict(shared.policy.named_parameters())
    if shared.critic is not None:
        parameters |= {f"critic.{name}": parameter for name, parameter in shared.critic.named_parameters()}
    assert gradients.keys() == parameters.keys()
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    experience = shared.assessor.experience(trajectories())  # old log-probs, values and advantages stay as they are
    step = 1e-3  # the library's norms work in float32, so a smaller one drowns in rounding

    def loss_after(distance: float) -> float:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter += distance * gradients[name] / norm
        return shared.updater.run(experience, splits=SPLITS[0], apply=False).loss

    slope = (loss_after(step) - loss_after(-2 * step)) / (2 * step)
    loss_after(step)
    assert slope == pytest.approx(norm, rel=1e-2)


def test_without_applying_nothing_changes(shared: SyncTrainer) -> None:
    before = shared.fingerprint()
    first, second = (gradients_of(shared, SPLITS[0]) for _ in range(2))
    assert shared.fingerprint() == before
    assert first.metrics == second.metrics
    assert all(parameter.grad is None for parameter in shared.policy.parameters())


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_all_responses_empty_move_nothing(algorithm: str) -> None:
    built = build_trainer(config("qwen3", algorithm, optimizer={"weight_decay": 0.1}))
    built.update(trajectories(), splits=SPLITS[0])  # momentum that could go on moving
    before = built.fingerprint()
    result = built.update(trajectories(empty=True), splits=SPLITS[2])
    assert built.fingerprint() == before
    assert result.loss == 0.0
    assert all(value == value for value in result.metrics.values())


def test_a_mini_batch_of_no_rows_moves_nothing(shared: SyncTrainer) -> None:
    before = shared.fingerprint()
    assert shared.update([], splits=[]).loss == 0.0
    assert shared.update([], splits=[[]], apply=False).loss == 0.0
    assert shared.fingerprint() == before


def test_an_update_moves_policy_and_critic(shared: SyncTrainer) -> None:
    built = trainer("ppo")
    assert built.critic is not None
    policy, critic = ([p.detach().clone() for p in module.parameters()] for module in (built.policy, built.critic))
    result = built.update(trajectories(), splits=SPLITS[2])
    assert result.gradients == {}
    assert result.metrics["grad_norm"] > 0
    assert result.metrics["critic_grad_norm"] > 0
    assert any(not torch.equal(a, b) for a, b in zip(policy, built.policy.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(critic, built.critic.parameters(), strict=True))


def test_the_ratio_is_one_before_the_first_update(shared: SyncTrainer) -> None:
    fresh = [
        Trajectory(prompt=sample.prompt, response=sample.response, score=sample.score, group=sample.group)
        for sample in trajectories()
    ]
    metrics = shared.update(fresh, splits=SPLITS[1], apply=False).metrics
    assert metrics["clip_fraction"] == 0.0
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-20)


def test_the_learning_rate_follows_the_schedule() -> None:
    built = build_trainer(config(optimizer={"lr": 1e-3, "schedule": "linear"}))
    rates = [built.update(trajectories(), splits=SPLITS[0]).metrics["learning_rate"] for _ in range(5)]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4, 0.0])


@pytest.mark.parametrize("splits", [[[0, 1, 2, 3]], [[0, 1, 2, 3, 4, 4]], [[0, 1], [1, 2, 3, 4]], [[-1, 0, 1, 2, 3]]])
def test_splits_that_lose_or_repeat_a_row_are_refused(shared: SyncTrainer, splits: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="do not hold each of the 5 rows once"):
        shared.update(trajectories(), splits=splits, apply=False)


def test_a_gradient_that_is_not_finite_stops_before_the_step() -> None:
    built = build_trainer(config())
    before = built.fingerprint()
    poisoned = [
        Trajectory(prompt=(1,), response=(2,), score=float("nan"), group=0),
        Trajectory(prompt=(1,), response=(3,), score=1.0, group=0),
    ]
    with pytest.raises(FloatingPointError, match="the policy's gradient norm is nan in update 0"):
        built.update(poisoned, splits=[[0, 1]])
    assert built.fingerprint() == before
