"""Tokens a second of a GRPO step, ours beside TRL's `GRPOTrainer`: `python -m tests.benchmarks.grpo_step`.

Both sides train in this process, in turns: equal weights, prompts (of one length), group size, tokens, optimizer
steps, float32 and threads, the same loss (clipped, no KL) and reward. No response ends early: our engine has no end
token, TRL's is an id that the model can't draw. Prints one JSON object; nothing here passes or fails.
Without TRL importable it measures nothing, says so and exits with 3.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

GROUP = 8
LEARNING_RATE = 5e-4
MODELS = Path(__file__).parents[2] / "matrices" / "models.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", choices=["qwen3", "gemma4"], help="default: both")
    parser.add_argument("--shape", action="append", help="completions x tokens; default: 32x32 and 64x128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps of a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--prompt", default="question", choices=["question", "expression"], help="about 70 or 10 tokens"
    )
    asked = parser.parse_args()
    missing = [name for name in ("trl", "datasets", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not measured: {', '.join(missing)} can't be imported; install trl==1.16.* beside the project")
        return 3
    import torch

    from harness.execution.limits import usable_cores
    from harness.hardware.machine import cpu_model, machine_class

    torch.set_num_threads(asked.threads)
    result: dict[str, Any] = {
        "machine_class": machine_class(cpu_model(), cores=usable_cores()),
        "threads": asked.threads,
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "accelerate")},
        "load_before": round(os.getloadavg()[0], 2),
        "steps_per_round": asked.steps,
        "prompt": asked.prompt,
        "cells": {},
    }
    for model in asked.model or ["qwen3", "gemma4"]:
        for shape in asked.shape or ["32x32", "64x128"]:
            rows, tokens = (int(part) for part in shape.split("x"))
            result["cells"][f"{model} {shape}"] = compare(
                model, rows=rows, tokens=tokens, rounds=asked.rounds, steps=asked.steps, prompt=asked.prompt
            )
    result["load_after"] = round(os.getloadavg()[0], 2)
    print(json.dumps(result, indent=2))
    return 0


def compare(model: str, *, rows: int, tokens: int, rounds: int, steps: int, prompt: str) -> dict[str, Any]:
    """Tokens a second of both sides, round by round; who goes first alternates. One round more warms both up."""
    total = (rounds + 1) * steps
    with tempfile.TemporaryDirectory() as folder:
        trainer = our_trainer(model, rows=rows, tokens=tokens, steps=total, prompt=prompt)
        sides = {
            "ours": lambda: time_ours(trainer, steps),
            "trl": trl_rounds(trainer, rows=rows, tokens=tokens, steps=steps, folder=folder),
        }
        for side in sides.values():
            side()
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                speeds[name].append(rows * tokens * steps / sides[name]())
        trainer.close()
    ratios = sorted(ours / theirs for ours, theirs in zip(speeds["ours"], speeds["trl"], strict=True))
    return {
        "tokens_per_second": {name: [round(speed) for speed in found] for name, found in speeds.items()},
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_lowest": round(ratios[0], 2),
        "ratio_highest": round(ratios[-1], 2),
    }


def our_trainer(model: str, *, rows: int, tokens: int, steps: int, prompt: str = "question") -> Any:
    """A `SyncTrainer` whose responses all have `tokens` tokens."""
    from reference_trainer.config import load_config
    from reference_trainer.trainers.factory import build_trainer

    settings = {
        "model": yaml.safe_load(MODELS.read_text())[model]["sizes"]["tiny"],
        "algorithm": {"advantage": "grpo", "group_size": GROUP},
        "task": {"prompt": prompt, "prompts_per_step": rows // GROUP, "eval_prompts": 4},
        "rollout": {"max_tokens": tokens},
        "batch": {"mini_batch": rows, "micro_batch": rows},
        "optimizer": {"lr": LEARNING_RATE},
        "warm_start": {"steps": 0},
        "measure_kl": False,  # TRL loads no reference policy without a KL term
        "steps": steps,
    }
    trainer = build_trainer(load_config(settings))
    engine: Any = trainer.engine
    engine._eos_id = None  # no token ends a response
    return trainer


def time_ours(trainer: Any, steps: int) -> float:
    began = time.perf_counter()
    done = [trainer.step() for _ in range(steps)]
    seconds = time.perf_counter() - began
    budget = trainer.config.rollout.max_tokens
    assert all(step["response_tokens"] == budget * trainer.config.rows_per_step for step in done), "a response ended"
    return seconds


def trl_rounds(ours: Any, *, rows: int, tokens: int, steps: int, folder: str) -> Callable[[], float]:
    """Seconds that TRL's trainer takes for `steps` steps, as a function: its time from step begin to step end."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.utils import logging
    from trl import GRPOConfig, GRPOTrainer

    from reference_trainer.models.build import build_policy
    from reference_trainer.rewards.scorers import score_response
    from reference_trainer.trainers.factory import policy_seed

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = ours.config
    count = rows // GROUP
    tasks = ours._tasks.tasks(0, count * steps)
    tokenizer = ours_tokenizer_without_end()
    prompts = [tokenizer.decode(task.prompt, skip_special_tokens=False) for task in tasks]
    for prompt, task in zip(prompts, tasks, strict=True):
        assert tuple(tokenizer(text=prompt)["input_ids"]) == tuple(task.prompt), "the sides would see other prompts"
    policy = build_policy(config.model, seed=policy_seed(config), dtype=torch.float32)
    policy.generation_config.eos_token_id = None
    seconds: list[float] = []
    lengths: set[int] = set()

    def reward(completions: list[str], number: list[int], completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.update(len(ids) for ids in completion_ids)
        return [
            score_response(ours._tasks, tasks[index], text) for index, text in zip(number, completions, strict=True)
        ]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=rows,
        num_generations=GROUP,
        max_completion_length=tokens,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta2=config.optimizer.betas[1],
        max_grad_norm=config.optimizer.max_grad_norm,
        beta=0.0,
        loss_type="dapo",  # the mean over the batch's tokens, as our token_mean
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        shuffle_dataset=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=policy,
        args=arguments,
        reward_funcs=reward,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": prompts, "number": list(range(len(prompts)))}),
        callbacks=[Clock()],
    )
    from transformers import PrinterCallback, ProgressCallback

    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)

    def run() -> float:
        seconds.clear()
        trainer.train()
        assert lengths == {tokens}, f"completions have {sorted(lengths)} tokens and not {tokens}"
        assert len(seconds) == steps, f"{len(seconds)} steps were taken and not {steps}"
        return sum(seconds)

    return run


def ours_tokenizer_without_end() -> Any:
    """Our tokenizer, its end token an id beyond the model's vocabulary."""
    from reference_trainer.data.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    tokenizer.padding_side = "left"
    return tokenizer


if __name__ == "__main__":
    sys.exit(main())
