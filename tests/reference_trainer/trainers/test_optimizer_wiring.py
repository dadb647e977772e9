"""Each optimizer setting reaches the step: two updates are followed by hand, in float64, from their own gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from reference_trainer.trainers.factory import build_trainer
from reference_trainer.trainers.schedule import learning_rate_factor
from tests.reference_trainer.tiny import config
from tests.reference_trainer.trainers.test_update import trajectories

SETTINGS: dict[str, Any] = {
    "lr": 2e-3,
    "critic_lr": 7e-3,
    "betas": [0.8, 0.6],
    "weight_decay": 0.1,
    "max_grad_norm": 0.05,
    "schedule": "linear",
    "warmup_steps": 2,
}


@pytest.mark.parametrize("prefix", ["", "critic."])
def test_two_updates_are_adamw_with_the_settings_asked_for(prefix: str) -> None:
    built = build_trainer(config("qwen3", "ppo", optimizer=SETTINGS, dtype="float64", steps=4))
    parts = {"": built.policy, "critic.": built.critic}
    module = parts[prefix]
    assert module is not None
    name, parameter = next((n, p) for n, p in module.named_parameters() if "norm" not in n and p.dim() == 2)
    total, peak = built.config.total_updates, SETTINGS["critic_lr" if prefix else "lr"]
    value, first, second = parameter.detach().clone(), torch.zeros_like(parameter), torch.zeros_like(parameter)
    for update in range(2):
        experience = built.assessor.experience(trajectories())
        splits = [list(range(5))]
        found = built.updater.run(experience, splits=splits, apply=False).gradients
        own = [g for n, g in found.items() if n.startswith("critic.") == bool(prefix)]
        norm = math.sqrt(sum(g.square().sum().item() for g in own))
        assert norm > SETTINGS["max_grad_norm"], "the clip is in force"
        gradient = found[prefix + name] * SETTINGS["max_grad_norm"] / (norm + 1e-6)
        metrics = built.updater.run(experience, splits=splits).metrics
        assert metrics["critic_grad_norm" if prefix else "grad_norm"] == pytest.approx(norm, rel=1e-9)

        factor = learning_rate_factor("linear", update=update, warmup=2, total=total)
        assert metrics["learning_rate"] == pytest.approx(SETTINGS["lr"] * factor)
        one, two = SETTINGS["betas"]
        first = one * first + (1 - one) * gradient
        second = two * second + (1 - two) * gradient.square()
        value = value * (1 - peak * factor * SETTINGS["weight_decay"])
        corrected = first / (1 - one ** (update + 1)), second / (1 - two ** (update + 1))
        value = value - peak * factor * corrected[0] / (corrected[1].sqrt() + 1e-8)
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-7, atol=1e-10)
    built.close()


@pytest.mark.parametrize(("schedule", "middle"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)])
def test_the_schedule_rises_over_its_warm_up_and_falls_to_nothing(schedule: Any, middle: float) -> None:
    factors = [learning_rate_factor(schedule, update=update, warmup=4, total=24) for update in range(25)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[14] == pytest.approx(middle)
    assert factors[24] == pytest.approx(1.0 if schedule == "constant" else 0.0)
