"""The trainer's configuration: typed, frozen, and refused in one sentence when it is wrong. Does not import torch.

Every knob has one line of documentation under it. A present null counts as an absent key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from reference_trainer.config.algorithm import AlgorithmConfig, DistillationConfig, OverlongConfig
from reference_trainer.config.fields import Count, Natural, NonNegative, Number, Positive, Section, Seed, Switch
from reference_trainer.config.model import Architecture, DrafterConfig, LoraConfig, ModelConfig
from reference_trainer.config_errors import ConfigError, first_problem

__all__ = [
    "AlgorithmConfig",
    "Architecture",
    "BatchConfig",
    "ConfigError",
    "DistillationConfig",
    "DrafterConfig",
    "LogProbConfig",
    "LogProbVariant",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OverlongConfig",
    "RolloutConfig",
    "TaskConfig",
    "TrainerConfig",
    "WarmStartConfig",
    "load_config",
]


class TaskConfig(Section):
    """Where prompts and rewards come from."""

    dataset: str = "chain_sum"
    """Name of a reasoning-gym generator, or `image_count`, whose images are drawn here."""
    settings: dict[str, Any] = Field(
        default_factory=lambda: {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    )
    """Keyword arguments of that generator."""
    prompt: Literal["question", "expression"] = "question"
    """The whole question, or only the bare expression of its metadata, which a tiny model can learn in seconds."""
    chat_template: Switch = True
    """Whether the prompt is rendered as a user's turn."""
    prompts_per_step: Count = 32
    """Distinct prompts in a rollout batch."""
    eval_prompts: Count = 200
    """Held-out prompts of an evaluation."""


class RolloutConfig(Section):
    """How responses are sampled."""

    temperature: Positive = 1.0
    """Divides the logits, in sampling and in the trainer's log-probs alike."""
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    """Nucleus: smallest set of tokens with at least this probability; 1 is off."""
    top_k: Natural = 0
    """Only the k likeliest tokens; 0 is off."""
    max_tokens: Count = 4
    """Budget of a response, the end token included."""
    max_rows: Count = 256
    """Most rows that the sampler decodes at once."""
    max_prompt_tokens: Count | None = None
    """A longer prompt is dropped and counted in the metrics; null takes any that the model has positions for."""
    draft_tokens: Natural = 0
    """Tokens that the model's drafter proposes at a time; 0 decodes without it."""
    draft_rows: Count = 16
    """Most rows that are decoded together when drafting: the row with the fewest accepted drafts holds up the rest."""


class OptimizerConfig(Section):
    """AdamW, one instance for the policy and one for the critic."""

    lr: Positive = 5e-4
    """Peak learning rate of the policy."""
    critic_lr: Positive = 1e-3
    """Peak learning rate of the critic (PPO)."""
    betas: tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the first and second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """The gradient's norm is clipped to this, for policy and critic apart."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up; linear and cosine fall to 0 over the run's updates."""
    warmup_steps: Natural = 0
    """Optimizer updates over which the learning rate rises from 0."""


class BatchConfig(Section):
    """How a rollout batch is cut, in rows."""

    mini_batch: Count = 256
    """Rows of one optimizer update; divides prompts_per_step × group_size."""
    micro_batch: Count = 256
    """Rows of one forward and backward pass; gradients do not depend on it."""
    epochs: Count = 1
    """Passes over each rollout batch."""


LogProbVariant = Literal["dense", "logsumexp", "chunked", "fused"]


class LogProbConfig(Section):
    """How log-probs are computed from hidden states. Equal values up to rounding; what differs is memory and time.

    dense: softmax over all logits; logsumexp: one gathered logit minus a log-sum-exp; chunked: the same over a few
    positions at a time; fused: from hidden states without ever holding the logits, computed again in the backward pass.
    """

    actor: LogProbVariant = "dense"
    """Of the policy that is trained."""
    reference: LogProbVariant = "dense"
    """Of the reference policy, and of the policy's own log-probs before the update."""
    distillation: Literal["dense", "fused"] = "dense"
    """Of the divergence to the teacher."""
    chunk: Count = 512
    """Positions of one chunk (chunked, fused)."""


class WarmStartConfig(Section):
    """A short supervised training, so that a random model has something to improve."""

    steps: Natural = 100
    """Updates; 0 for none."""
    batch: Count = 64
    """Prompts of one update."""
    lr: Positive = 3e-3
    """Learning rate of the warm start, constant."""


class TrainerConfig(Section):
    """All that decides a run. Equal configurations give equal parameters for equal torch build, CPU and threads."""

    model: ModelConfig
    """The policy."""
    algorithm: AlgorithmConfig
    """The objective."""
    task: TaskConfig = TaskConfig()
    """Prompts and rewards."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling."""
    log_prob: LogProbConfig = LogProbConfig()
    """How log-probs are computed."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW and its schedule."""
    batch: BatchConfig = BatchConfig()
    """Mini- and micro-batches."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """Supervised start."""
    mode: Literal["sync"] = "sync"
    """How rollout and update take turns; only sync so far."""
    engine: Literal["native"] = "native"
    """What samples the responses."""
    platform: Literal["cpu"] = "cpu"
    """What the models run on."""
    measure_kl: Switch = True
    """Whether the KL to the reference policy is told where the loss does not need it; it costs a forward pass."""
    dp: Count = 1
    """Data-parallel rollout replicas; from 2 on each is a process of its own."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Floating type of parameters and forward passes."""
    seed: Seed = 0
    """Everything random derives from it."""
    steps: Count = 45
    """Rollout batches of a run; the schedule ends with them."""

    @property
    def rows_per_step(self) -> int:
        """Rows of one rollout batch."""
        return self.task.prompts_per_step * self.algorithm.group_size

    @property
    def total_updates(self) -> int:
        """Optimizer updates of a whole run."""
        return self.steps * self.batch.epochs * (self.rows_per_step // self.batch.mini_batch)

    @property
    def supervised_tasks(self) -> int:
        """Tasks that the warm start takes, and the teacher's behind it; rollouts draw those that follow."""
        distillation = self.algorithm.distillation
        return (self.warm_start.steps + (distillation.teacher_steps if distillation else 0)) * self.warm_start.batch

    @property
    def most_rollout_tasks(self) -> int:
        """Tasks that the rollouts of a whole run can take."""
        return self.steps * self.task.prompts_per_step * (1 + self.algorithm.dynamic_sampling)

    @property
    def updates_once_per_rollout(self) -> bool:
        """One optimizer update a rollout batch: the policy that it starts from is the one that sampled."""
        return self.batch.epochs == 1 and self.batch.mini_batch == self.rows_per_step

    @property
    def needs_reference(self) -> bool:
        return self.measure_kl or self.algorithm.kl != "none"

    @model_validator(mode="after")
    def _consistent(self) -> TrainerConfig:
        mini, micro = self.batch.mini_batch, self.batch.micro_batch
        if micro > mini:
            raise ValueError(f"batch.micro_batch {micro} is larger than batch.mini_batch {mini}; lower it to {mini}")
        if self.rows_per_step % mini:
            raise ValueError(
                f"batch.mini_batch {mini} does not divide the {self.rows_per_step} rows of a step "
                f"(task.prompts_per_step {self.task.prompts_per_step} × algorithm.group_size "
                f"{self.algorithm.group_size}); choose a divisor"
            )
        if self.rollout.draft_tokens and self.model.drafter is None:
            raise ValueError(
                f"rollout.draft_tokens {self.rollout.draft_tokens} needs a drafter; set model.drafter, or 0 tokens"
            )
        if self.algorithm.penalises_overlong:
            assert self.algorithm.overlong is not None
            length, budget = self.algorithm.overlong.length, self.rollout.max_tokens
            if not 0 < length <= budget:
                raise ValueError(
                    f"algorithm.overlong.length {length} should be at least 1 and at most rollout.max_tokens {budget}"
                )
        if self.optimizer.warmup_steps > self.total_updates:
            raise ValueError(
                f"optimizer.warmup_steps {self.optimizer.warmup_steps} is more than the run's {self.total_updates} "
                "updates; lower it or raise steps"
            )
        return self


def load_config(mapping: Mapping[str, Any]) -> TrainerConfig:
    """Validate plain data. Raises `ConfigError`: one sentence with key path, value and the nearest valid name."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"the trainer's configuration is {mapping!r}; it should be a mapping of sections")
    try:
        return TrainerConfig.model_validate(_without_nulls(mapping))
    except ValidationError as error:
        raise ConfigError(first_problem(error, TrainerConfig)) from None


# The one key whose null says something else than its default: no clipping of the critic.
_MEANINGFUL_NULLS = {("algorithm", "value_clip")}
_FREE_FORM = {("model", "config"), ("model", "drafter", "config"), ("task", "settings")}


def _without_nulls(mapping: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    kept = {}
    for key, value in mapping.items():
        here = (*path, key)
        if value is None and here not in _MEANINGFUL_NULLS:
            continue
        kept[key] = _without_nulls(value, here) if isinstance(value, Mapping) and here not in _FREE_FORM else value
    return kept
