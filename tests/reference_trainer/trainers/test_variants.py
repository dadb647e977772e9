"""What stands beside the policy (drafter, adapters, teacher, images) is trained, or left alone, as it should."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_trainer.models.lora import is_adapter
from reference_trainer.trainers.factory import build_trainer
from reference_trainer.trainers.sync import SyncTrainer
from tests.reference_trainer.tiny import config

SMALL: dict[str, Any] = {"warm_start": {"steps": 2, "batch": 4}}
MOVES = {"entropy_coefficient": 0.1}  # a policy that has learnt nothing yet scores nothing, and would stand still


def trained(*arguments: str, steps: int = 2, **sections: Any) -> tuple[SyncTrainer, list[dict[str, float | None]]]:
    built = build_trainer(config(*arguments, **{**SMALL, **sections}))
    built.warm_start()
    return built, [built.step() for _ in range(steps)]


def parameters(built: SyncTrainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in built.policy.named_parameters()}


@pytest.mark.parametrize(("model", "kind"), [("qwen3", "mtp"), ("qwen3.5", "mtp"), ("gemma4", "assistant")])
def test_the_policy_s_course_does_not_hang_on_its_drafter(model: str, kind: str) -> None:
    without, told = trained(model, algorithm=MOVES)
    beside, steps = trained(model, algorithm=MOVES, model={"drafter": {"kind": kind}})
    assert all((step["grad_norm"] or 0) > 0 for step in told)
    drafter = {name: value for name, value in parameters(beside).items() if name.split(".")[0] in ("mtp", "assistant")}
    assert drafter
    for name, value in parameters(without).items():
        assert torch.equal(parameters(beside)[name], value), name
    assert all((step["mtp_loss"] or 0) > 0 for step in steps)
    assert all((step["drafter_grad_norm"] or 0) > 0 for step in steps)


def test_a_drafter_learns_what_the_policy_learns_to_say() -> None:
    losses = []
    for steps in (0, 60):
        _, told = trained("qwen3", steps=1, model={"drafter": {"kind": "mtp"}}, warm_start={"steps": steps})
        losses.append(told[0]["mtp_loss"] or 0)
    assert losses[1] < 0.7 * losses[0]


def test_a_drafter_of_no_weight_stays_as_it_was_drawn() -> None:
    built = build_trainer(config("qwen3", model={"drafter": {"kind": "mtp", "loss_coefficient": 0.0}}, **SMALL))
    built.warm_start()
    before = parameters(built)
    assert built.step()["mtp_loss"] is None
    assert all(torch.equal(parameters(built)[name], value) for name, value in before.items() if name.startswith("mtp"))


@pytest.mark.parametrize(("model", "kind"), [("qwen3", "mtp"), ("qwen3.5", "mtp"), ("gemma4", "assistant")])
def test_drafts_are_counted_by_position(model: str, kind: str) -> None:
    sections = {"model": {"drafter": {"kind": kind}}, "rollout": {"draft_tokens": 2, "max_tokens": 5}}
    _, steps = trained(model, **sections)
    for step in steps:
        assert 0 <= (step["drafts_accepted"] or 0) <= (step["drafts_proposed"] or 0)
        assert step["drafts_proposed"]
        assert 0 <= (step["draft_acceptance_1"] or 0) <= 1
        assert "draft_acceptance_3" not in step
        assert (step["logprob_gap"] or 0) < 1e-4


def test_adapters_move_and_their_base_does_not() -> None:
    built = build_trainer(config("qwen3", model={"lora": {"rank": 2}}, algorithm=MOVES, **SMALL))
    built.warm_start()
    before = parameters(built)
    steps = [built.step() for _ in range(2)]
    moved = {name for name, value in parameters(built).items() if not torch.equal(before[name], value)}
    assert moved
    assert all(is_adapter(name) for name in moved)
    assert all((step["logprob_gap"] or 0) < 1e-4 for step in steps), "the engine has them merged"
    assert (steps[0]["kl"] or 0) < 1e-9 < (steps[1]["kl"] or 0)


def test_the_warm_start_of_an_adapted_policy_is_that_of_its_base() -> None:
    plain, adapted = (build_trainer(config("qwen3", model={"lora": lora}, **SMALL)) for lora in (None, {"rank": 2}))
    for built in (plain, adapted):
        built.warm_start()
    merged = {name.replace(".base_layer", ""): value for name, value in parameters(adapted).items()}
    for name, value in parameters(plain).items():
        torch.testing.assert_close(merged[name], value, rtol=0, atol=1e-6)
    assert [name for name, parameter in adapted.policy.named_parameters() if parameter.requires_grad] == [
        name for name in parameters(adapted) if is_adapter(name)
    ]


@pytest.mark.parametrize("variant", ["dense", "fused"])
def test_distillation_draws_the_policy_to_a_teacher_that_stays(variant: str) -> None:
    algorithm = {"advantage": "none", "policy_loss": "none", "distillation": {"teacher_steps": 30}}
    sections = {"algorithm": algorithm, "log_prob": {"distillation": variant, "chunk": 3}, "optimizer": {"lr": 3e-3}}
    built = build_trainer(config("qwen3", **SMALL, **sections))
    built.warm_start()
    assert built.teacher is not None
    taught = {name: value.clone() for name, value in built.teacher.state_dict().items()}
    steps = [built.step() for _ in range(10)]
    assert (steps[-1]["distillation_loss"] or 0) < 0.7 * (steps[0]["distillation_loss"] or 0)
    assert steps[0]["policy_loss"] is None
    assert all(torch.equal(built.teacher.state_dict()[name], value) for name, value in taught.items())


def test_without_a_use_for_it_there_is_no_reference_policy() -> None:
    built, steps = trained("qwen3", measure_kl=False)
    assert built.reference is None
    assert steps[0]["kl"] is None
    assert build_trainer(config(measure_kl=False, algorithm={"kl": "k3", "kl_coefficient": 0.1})).reference is not None


def test_old_log_probs_that_the_update_computes_are_those_computed_before_it() -> None:
    """One update a rollout: leaving the log-probs to it changes nothing, and the metrics still know them."""
    whole = {"batch": {"mini_batch": 8, "micro_batch": 4}, "dtype": "float64"}
    left, steps = trained("qwen3", **whole)
    before = parameters(left)
    computed = build_trainer(config("qwen3", **{**SMALL, **whole}))
    computed.assessor._update_computes_them = lambda trajectories: False  # type: ignore[method-assign]
    computed.warm_start()
    others = [computed.step() for _ in range(2)]
    for name, value in parameters(computed).items():
        torch.testing.assert_close(before[name], value, rtol=0, atol=1e-12)
    for step, other in zip(steps, others, strict=True):
        for name in ("kl", "logprob_gap", "approx_kl", "clip_fraction", "policy_loss", "entropy"):
            assert step[name] == pytest.approx(other[name], abs=1e-10), name


@pytest.mark.parametrize("model", ["qwen3.5-vl", "gemma4-vl"])
@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_a_policy_with_a_vision_tower_trains_on_images(model: str, kind: str) -> None:
    task = {"dataset": "image_count", "settings": {"max_count": 3}, "prompt": "question"}
    built = build_trainer(config(model, kind, task=task, algorithm=MOVES, **SMALL))
    built.warm_start()
    before = parameters(built)
    steps = [built.step() for _ in range(2)]
    assert all((step["logprob_gap"] or 0) < 1e-4 for step in steps)
    assert all((step["sync_gap"] or 0) < 1e-4 for step in steps)
    tower = [name for name in before if "vision" in name or "visual" in name]
    assert any(not torch.equal(parameters(built)[name], before[name]) for name in tower)
