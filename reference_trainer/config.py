"""The trainer's configuration: typed, frozen, and refused in one sentence when it is wrong. Does not import torch.

Every knob has one line of documentation under it. A present null counts as an absent key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from reference_trainer.config_errors import ConfigError, first_problem

__all__ = [
    "AlgorithmConfig",
    "BatchConfig",
    "ConfigError",
    "ModelConfig",
    "OptimizerConfig",
    "RolloutConfig",
    "TaskConfig",
    "TrainerConfig",
    "WarmStartConfig",
    "load_config",
]


def _refuse_bool(value: Any) -> Any:
    """YAML's `yes` is not the number 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number, not a boolean")
    return value


_Number = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
NonNegative = Annotated[_Number, Field(ge=0)]
Positive = Annotated[_Number, Field(gt=0)]
Fraction = Annotated[_Number, Field(ge=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
Natural = Annotated[int, Field(strict=True, ge=0)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Switch = Annotated[bool, Field(strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, protected_namespaces=()
    )


class ModelConfig(_Section):
    """Which transformers class is built, from a configuration alone."""

    architecture: Literal["qwen3", "qwen3.5", "gemma4"]
    """Family of the policy: Qwen3ForCausalLM, Qwen3_5ForCausalLM or Gemma4ForCausalLM."""
    config: dict[str, Any] = Field(min_length=1)
    """Keyword arguments of the family's transformers configuration; sizes have no default here."""
    init_std: Positive = 0.05
    """Standard deviation of the random matrices; the library's own 0.02 leaves a tiny model near uniform."""


class AlgorithmConfig(_Section):
    """What is optimised. Every term of the loss uses the same `aggregation`."""

    name: Literal["ppo", "grpo"]
    """ppo trains a critic beside the policy; grpo compares the samples of one prompt."""
    advantage: Literal["gae", "grpo"] | None = None
    """Estimator of the advantage; null takes the one of the algorithm."""
    gamma: Fraction = 1.0
    """Discount per token (GAE)."""
    lam: Fraction = 0.95
    """GAE's lambda: 0 trusts the critic one token ahead, 1 the whole return."""
    whiten: Switch = True
    """GAE advantages are brought to mean 0 and deviation 1 over the rollout batch."""
    policy_loss: Literal["ppo_clip"] = "ppo_clip"
    """Surrogate of the policy gradient."""
    clip_low: Annotated[_Number, Field(ge=0, lt=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    kl: Literal["none", "k1", "k2", "k3", "abs"] = "none"
    """Estimator of the KL divergence to the reference policy that is added to the loss."""
    kl_coefficient: NonNegative = 0.0
    """Weight of the KL term."""
    value_clip: Positive | None = 0.2
    """The critic's change since the rollout is clipped to this; null for no clipping."""
    value_coefficient: Positive = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the entropy bonus."""
    aggregation: Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"] = (
        "token_mean"
    )
    """How token losses become one number."""
    empty_row: Literal["left_out", "counted"] = "left_out"
    """Whether a response without tokens counts in a mean over sequences."""
    group_size: Count = 8
    """Samples drawn for each prompt."""
    std_ddof: Literal[0, 1] = 1
    """Delta degrees of freedom of a standard deviation: 1 divides by n - 1."""
    std_eps: NonNegative = 1e-6
    """Added to a standard deviation before dividing by it."""
    divide_by_std: Switch = True
    """Whether a group's advantages are divided by its deviation (GRPO) or left as differences (Dr. GRPO)."""
    singleton: Literal["zero", "score"] = "zero"
    """Advantage of a sample alone in its group: 0, or its score."""

    @property
    def advantage_estimator(self) -> Literal["gae", "grpo"]:
        """The estimator in force."""
        return self.advantage or ("gae" if self.has_critic else "grpo")

    @property
    def has_critic(self) -> bool:
        return self.name == "ppo"

    @model_validator(mode="after")
    def _consistent(self) -> AlgorithmConfig:
        if self.advantage == "gae" and not self.has_critic:
            raise ValueError('algorithm.advantage "gae" needs a critic, which "grpo" does not train; use name "ppo"')
        if self.advantage == "grpo" and self.has_critic:
            raise ValueError(
                'algorithm.advantage "grpo" would leave the critic of "ppo" without a use; use name "grpo"'
            )
        if self.kl == "none" and self.kl_coefficient > 0:
            raise ValueError(
                f'algorithm.kl_coefficient {self.kl_coefficient} has no effect with kl "none"; name one or set 0'
            )
        if self.kl != "none" and self.kl_coefficient == 0:
            raise ValueError(f'algorithm.kl "{self.kl}" has no effect with kl_coefficient 0; set one, or kl "none"')
        return self


class TaskConfig(_Section):
    """Where prompts and rewards come from."""

    dataset: str = "chain_sum"
    """Name of a reasoning-gym generator."""
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


class RolloutConfig(_Section):
    """How responses are sampled."""

    temperature: Positive = 1.0
    """Divides the logits, in sampling and in the trainer's log-probs alike."""
    top_p: Annotated[_Number, Field(gt=0, le=1)] = 1.0
    """Nucleus: smallest set of tokens with at least this probability; 1 is off."""
    top_k: Natural = 0
    """Only the k likeliest tokens; 0 is off."""
    max_tokens: Count = 4
    """Budget of a response, the end token included."""
    max_rows: Count = 256
    """Most rows that the sampler decodes at once."""


class OptimizerConfig(_Section):
    """AdamW, one instance for the policy and one for the critic."""

    lr: Positive = 5e-4
    """Peak learning rate of the policy."""
    critic_lr: Positive = 1e-3
    """Peak learning rate of the critic (PPO)."""
    betas: tuple[Annotated[_Number, Field(ge=0, lt=1)], Annotated[_Number, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the first and second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """The gradient's norm is clipped to this, for policy and critic apart."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up; linear and cosine fall to 0 over the run's updates."""
    warmup_steps: Natural = 0
    """Optimizer updates over which the learning rate rises from 0."""


class BatchConfig(_Section):
    """How a rollout batch is cut, in rows."""

    mini_batch: Count = 256
    """Rows of one optimizer update; divides prompts_per_step × group_size."""
    micro_batch: Count = 256
    """Rows of one forward and backward pass; gradients do not depend on it."""
    epochs: Count = 1
    """Passes over each rollout batch."""


class WarmStartConfig(_Section):
    """A short supervised training, so that a random model has something to improve."""

    steps: Natural = 100
    """Updates; 0 for none."""
    batch: Count = 64
    """Prompts of one update."""
    lr: Positive = 3e-3
    """Learning rate of the warm start, constant."""


class TrainerConfig(_Section):
    """All that decides a run. Equal configurations give equal parameters for equal torch build, CPU and threads."""

    model: ModelConfig
    """The policy."""
    algorithm: AlgorithmConfig
    """The objective."""
    task: TaskConfig = TaskConfig()
    """Prompts and rewards."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling."""
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
_FREE_FORM = {("model", "config"), ("task", "settings")}


def _without_nulls(mapping: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    kept = {}
    for key, value in mapping.items():
        here = (*path, key)
        if value is None and here not in _MEANINGFUL_NULLS:
            continue
        kept[key] = _without_nulls(value, here) if isinstance(value, Mapping) and here not in _FREE_FORM else value
    return kept
