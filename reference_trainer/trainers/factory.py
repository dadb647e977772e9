"""A trainer from its configuration."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable

import torch

from reference_trainer.config import TrainerConfig
from reference_trainer.data.prompts import TaskSource
from reference_trainer.data.tokenizer import EOS_ID, PAD_ID, build_tokenizer
from reference_trainer.models.build import build_policy
from reference_trainer.models.critic import build_critic
from reference_trainer.platforms.registry import platform_by_name
from reference_trainer.rollout.engine import RolloutEngine
from reference_trainer.rollout.native import NativeEngine
from reference_trainer.seeds import derive_seed
from reference_trainer.trainers.sync import Parts, SyncTrainer


def build_trainer(config: TrainerConfig, *, child_setup: Callable[[], None] | None = None) -> SyncTrainer:
    """Build everything `config` names. With `dp` from 2 on this starts processes, each running `child_setup` first.

    Raises ConfigError when the model or the task can't be built from it.
    """
    platform = platform_by_name(config.platform)
    device, dtype = platform.device(), torch_dtype(config)
    tokenizer = build_tokenizer()
    steps, warm, task = config.steps, config.warm_start, config.task
    tasks = TaskSource(
        task,
        tokenizer,
        seed=config.seed,
        split="train",
        size=warm.steps * warm.batch + steps * task.prompts_per_step,
    )
    held_out = TaskSource(task, tokenizer, seed=config.seed, split="held_out", size=task.eval_prompts)
    # Before the models: replicas that are forked would keep a copy of them.
    engine = _build_engines(config, child_setup=child_setup)
    try:
        policy = build_policy(config.model, seed=policy_seed(config), dtype=dtype)
        reference = build_policy(config.model, seed=policy_seed(config), dtype=dtype)
        critic = None
        if config.algorithm.has_critic:
            critic = build_critic(config.model, seed=derive_seed(config.seed, "critic"), dtype=dtype).to(device)
        return SyncTrainer(
            config,
            Parts(
                platform=platform,
                tokenizer=tokenizer,
                policy=policy.to(device),  # type: ignore[arg-type]  # as in build_policy
                reference=reference.to(device),  # type: ignore[arg-type]
                critic=critic,
                engine=engine,
                tasks=tasks,
                held_out=held_out,
            ),
        )
    except BaseException:
        engine.close()
        raise


def build_engine(config: TrainerConfig) -> NativeEngine:
    """One native engine with the policy's initial weights, here or in a replica's process."""
    model = build_policy(config.model, seed=policy_seed(config), dtype=torch_dtype(config))
    device = platform_by_name(config.platform).device()
    return NativeEngine(
        model.to(device),  # type: ignore[arg-type]  # as in build_policy
        eos_id=EOS_ID,
        pad_id=PAD_ID,
        max_rows=config.rollout.max_rows,
    )


def policy_seed(config: TrainerConfig) -> int:
    """Seed of the policy's initial weights."""
    return derive_seed(config.seed, "policy")


def torch_dtype(config: TrainerConfig) -> torch.dtype:
    return getattr(torch, config.dtype)


def _build_engines(config: TrainerConfig, *, child_setup: Callable[[], None] | None) -> RolloutEngine:
    if config.dp == 1:
        return build_engine(config)
    from reference_trainer.rollout.replicas import ReplicaPool  # here, because one replica needs no sockets

    return ReplicaPool(
        replicas=config.dp,
        engine_factory=functools.partial(build_engine, config),
        job=uuid.uuid4().hex[:12],  # two runs of one configuration at once must not share addresses
        child_setup=child_setup,
        threads=torch.get_num_threads(),
    )
