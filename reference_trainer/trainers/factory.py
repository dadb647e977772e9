"""A trainer from its configuration."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from reference_trainer.config import ConfigError, DistillationConfig, ModelConfig, TrainerConfig
from reference_trainer.data.prompts import TaskSource
from reference_trainer.data.tokenizer import EOS_ID, PAD_ID, build_tokenizer
from reference_trainer.models.build import build_policy
from reference_trainer.models.critic import build_critic
from reference_trainer.models.lora import add_adapters
from reference_trainer.models.media import image_tokens
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
    # Before the models: replicas that are forked would keep a copy of them.
    engine = _build_engines(config, child_setup=child_setup)
    try:
        policy = build_policy(config.model, seed=policy_seed(config), dtype=dtype)
        if config.model.lora is not None:
            add_adapters(policy, config.model.lora, seed=derive_seed(config.seed, "adapters"))
        drawn = functools.partial(
            TaskSource, config.task, tokenizer, seed=config.seed, image_tokens=image_tokens(policy.config)
        )
        # Reference, teacher and critic are plain models: no adapters of their own, and nobody drafts for them.
        plain = config.model.model_copy(update={"lora": None, "drafter": None})
        reference = build_frozen(plain, config=config) if config.needs_reference else None
        teacher = None
        if config.algorithm.distillation is not None:
            teacher = build_teacher(plain, config.algorithm.distillation, config=config)
        critic = None
        if config.algorithm.has_critic:
            critic = build_critic(plain, seed=derive_seed(config.seed, "critic"), dtype=dtype).to(device)
        return SyncTrainer(
            config,
            Parts(
                platform=platform,
                tokenizer=tokenizer,
                policy=policy.to(device),  # type: ignore[arg-type]  # as in build_policy
                reference=reference,
                teacher=teacher,
                critic=critic,
                engine=engine,
                tasks=drawn(split="train", size=config.supervised_tasks + config.most_rollout_tasks),
                held_out=drawn(split="held_out", size=config.task.eval_prompts),
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
        draft_tokens=config.rollout.draft_tokens,
        draft_rows=config.rollout.draft_rows,
    )


def build_frozen(model: ModelConfig, *, config: TrainerConfig) -> PreTrainedModel:
    """A model with the policy's initial weights, on its device, of which nothing is trained."""
    frozen = build_policy(model, seed=policy_seed(config), dtype=torch_dtype(config)).requires_grad_(False)
    return frozen.to(platform_by_name(config.platform).device())  # type: ignore[arg-type]  # as in build_policy


def build_teacher(policy: ModelConfig, distillation: DistillationConfig, *, config: TrainerConfig) -> PreTrainedModel:
    """The user's own teacher, or the policy's initial weights, which the warm start takes further."""
    if distillation.teacher_checkpoint is None:
        return build_frozen(policy, config=config)
    own = policy.model_copy(update={"checkpoint": distillation.teacher_checkpoint, "config": {}})
    try:
        return build_frozen(own, config=config)
    except ConfigError as error:  # which speaks of the key that a policy's weights stand under
        said = str(error).replace("model.checkpoint", "algorithm.distillation.teacher_checkpoint")
        raise ConfigError(said) from None


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
