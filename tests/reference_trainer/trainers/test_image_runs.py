from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_trainer.data.layout import lay_out
from reference_trainer.models.capabilities import vision_tower
from reference_trainer.trainers.factory import build_trainer
from reference_trainer.trainers.forward import response_log_probs
from reference_trainer.trainers.sync import SyncTrainer
from reference_trainer.trainers.warm_start import answered
from tests.reference_trainer.tiny import config

VISION = ("qwen3.5-vl", "gemma4-vl")
# Images of two sizes, up to three a prompt: rows of a batch differ in length, features and positions.
TASK = {
    "dataset": "image_count",
    "settings": {"max_count": 3, "sizes": [16, 24], "images": 2},
    "chat_template": False,
    "prompts_per_step": 4,
    "eval_prompts": 6,
}


def trainer(model: str, /, **sections: Any) -> SyncTrainer:
    return build_trainer(config(model, task=TASK, warm_start={"steps": 2, "batch": 4}, **sections))


def tower(built: SyncTrainer) -> dict[str, torch.Tensor]:
    found = vision_tower(built.policy)
    assert found is not None
    return {name: value.detach().clone() for name, value in found.named_parameters()}


@pytest.mark.parametrize("model", VISION)
def test_two_steps_on_images_train_the_tower_that_the_engine_then_has(model: str) -> None:
    built = trainer(model, algorithm={"entropy_coefficient": 0.1})
    drawn = tower(built)
    built.warm_start()
    warm = tower(built)
    assert any(not torch.equal(drawn[name], warm[name]) for name in drawn)
    steps = [built.step() for _ in range(2)]
    for step in steps:
        assert (step["logprob_gap"] or 0) < 1e-4
        assert (step["sync_gap"] or 0) < 1e-4
    trained = tower(built)
    assert any(not torch.equal(warm[name], trained[name]) for name in warm)
    assert 0.0 <= built.evaluate() <= 1.0


@pytest.mark.parametrize("model", VISION)
def test_two_replicas_train_as_one_engine_does(model: str) -> None:
    runs = []
    for dp in (1, 2):
        built = trainer(model, dp=dp)
        try:
            built.warm_start()
            runs.append([built.step() for _ in range(2)])
        finally:
            built.close()
    for one, two in zip(*runs, strict=True):
        assert one["reward"] == two["reward"]
        assert (two["logprob_gap"] or 0) < 1e-4
        assert (two["sync_gap"] or 0) < 1e-4


@pytest.mark.parametrize(
    ("model", "beside"),
    [
        ("qwen3.5-vl", {"drafter": {"kind": "mtp"}}),
        ("gemma4-vl", {"drafter": {"kind": "assistant"}}),
        ("qwen3.5-vl", {"lora": {"rank": 2}}),
        ("gemma4-vl", {"lora": {"rank": 2}}),
    ],
)
def test_drafters_and_adapters_go_with_images(model: str, beside: dict[str, Any]) -> None:
    built = trainer(model, model=beside, rollout={"max_tokens": 5, "draft_tokens": 2 if "drafter" in beside else 0})
    built.warm_start()
    steps = [built.step() for _ in range(2)]
    assert all((step["logprob_gap"] or 0) < 1e-4 for step in steps)
    assert all((step["sync_gap"] or 0) < 1e-4 for step in steps)
    assert all(bool(step["drafts_proposed"]) == ("drafter" in beside) for step in steps)


@pytest.mark.parametrize("model", VISION)
def test_a_warm_start_on_images_learns_their_count(model: str) -> None:
    """Only what is in the image tells the answers apart: the prompts are the same."""
    built = build_trainer(
        config(
            model,
            task={**TASK, "settings": {"max_count": 2}, "prompt": "expression", "eval_prompts": 40},
            warm_start={"steps": 250, "batch": 32},
        )
    )
    built.warm_start()
    tasks = built._held_out.tasks(0, 40)
    assert len({task.prompt for task in tasks}) == 1
    assert {task.answer for task in tasks} == {"1", "2"}
    right = [answered(task, built.tokenizer) for task in tasks]
    wrong = [row._replace(response=answered(other, built.tokenizer).response) for row, other in _crossed(right, tasks)]
    of_right, of_wrong = (
        response_log_probs(built.policy, lay_out(rows, pad_id=256), temperature=1.0)[0].sum(-1)
        for rows in (right, wrong)
    )
    # A guess is right in half of 40: as many as 32 come by luck once in ten thousand.
    assert int((of_right > of_wrong).sum()) >= 32, (of_right, of_wrong)


def _crossed(rows: list[Any], tasks: list[Any]) -> list[tuple[Any, Any]]:
    """Each row with a task of another answer."""
    return [
        (row, next(other for other in tasks if other.answer != task.answer))
        for row, task in zip(rows, tasks, strict=True)
    ]
