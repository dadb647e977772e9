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
Architecture = Literal["qwen3", "qwen3.5", "qwen3.5-moe", "qwen3.5-vl", "gemma4", "gemma4-vl", "llama"]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, protected_namespaces=()
    )


class LoraConfig(_Section):
    """Low-rank adapters on the policy (peft); the base is frozen, and the reference policy is the base."""

    rank: Count
    """Rank of each adapter."""
    alpha: Positive = 16.0
    """The adapter's product is scaled by alpha / rank."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the linear layers that get one, or all of them but the head."""


class DrafterConfig(_Section):
    """A small model that proposes tokens for the policy to check, trained beside it."""

    kind: Literal["mtp", "assistant"]
    """mtp: blocks of the policy's own kind over its last hidden states; assistant: Gemma4's drafter."""
    layers: Count = 1
    """Decoder layers of the drafter."""
    loss_coefficient: NonNegative = 0.1
    """Weight of its loss; 0 leaves it as it was drawn."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the assistant's text configuration; what is left out is the policy's."""


class ModelConfig(_Section):
    """Which transformers class is built, from a configuration alone or from a user's weights."""

    architecture: Architecture
    """Family of the policy; `reference_trainer/models/families.py` says which classes it means."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the family's transformers configuration; sizes have no default here."""
    checkpoint: str | None = None
    """Folder with the user's own weights (size `local`); its config.json decides the sizes. Null: random weights."""
    init_std: Positive = 0.05
    """Standard deviation of the random matrices; the library's own 0.02 leaves a tiny model near uniform."""
    lora: LoraConfig | None = None
    """Adapters; null trains all parameters."""
    drafter: DrafterConfig | None = None
    """Drafter; null for none, whatever the architecture or a checkpoint could have."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if not self.config and self.checkpoint is None:
            raise ValueError("model.config is empty and there is no model.checkpoint; give one of them")
        if self.config and self.checkpoint is not None:
            raise ValueError("model.config and model.checkpoint both say the sizes; the checkpoint has its own config")
        return self


class OverlongConfig(_Section):
    """DAPO's soft punishment of long responses: the score falls linearly over the last tokens of the budget."""

    enabled: Switch = True
    """False is as if the section were not there."""
    length: Natural = 0
    """Tokens of the budget over which it falls; at least 1 and at most rollout.max_tokens when enabled."""
    factor: NonNegative = 1.0
    """Most that is taken away."""


class DistillationConfig(_Section):
    """On-policy distillation: the policy's distribution is drawn to a teacher's on its own responses."""

    coefficient: Positive = 1.0
    """Weight of the term."""
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    """KL(policy || teacher), KL(teacher || policy), or the generalised Jensen-Shannon divergence (GKD)."""
    jsd_beta: Annotated[_Number, Field(gt=0, lt=1)] = 0.5
    """Weight of the teacher in jsd's mixture."""
    top_k: Natural = 0
    """Only the teacher's k likeliest tokens; 0 takes the whole vocabulary."""
    tail: Literal["lumped", "renormalised"] = "lumped"
    """What top-k leaves over: one token more, or nothing and both sides brought back to 1."""
    teacher_steps: Natural = 100
    """Supervised updates by which the teacher is ahead of the policy's warm start."""
    teacher_checkpoint: str | None = None
    """Folder with a teacher of the policy's architecture; null makes one by `teacher_steps`."""


class AlgorithmConfig(_Section):
    """What is optimised. Every term of the loss uses the same `aggregation`."""

    advantage: Literal["gae", "grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "remax", "none"]
    """Estimator of the advantage. gae trains a critic beside the policy, remax samples a greedy baseline."""
    gamma: Fraction = 1.0
    """Discount per token (gae, reinforce_pp)."""
    lam: Fraction = 0.95
    """GAE's lambda: 0 trusts the critic one token ahead, 1 the whole return."""
    whiten: Switch = True
    """Advantages of gae and reinforce_pp* are brought to mean 0 and deviation 1 over the rollout batch."""
    policy_loss: Literal["ppo_clip", "gspo", "cispo", "none"] = "ppo_clip"
    """Surrogate of the policy gradient; none leaves it out (pure distillation)."""
    clip_low: Fraction = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[_Number, Field(gt=1)] | None = None
    """Bound on ratio × |advantage| where the advantage is negative (ppo_clip); null for none."""
    kl: Literal["none", "k1", "k2", "k3", "abs"] = "none"
    """Estimator of the KL divergence to the reference policy."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Whether the KL is a term of the loss, or is taken from each token's reward (gae, reinforce_pp)."""
    kl_coefficient: NonNegative = 0.0
    """Weight of the KL."""
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
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "none"
    """Importance weight of the trainer's old policy over the engine's: cut at the cap, or 0 outside the bounds."""
    correction_cap: Annotated[_Number, Field(ge=1)] = 2.0
    """Upper bound of the weight."""
    correction_floor: Annotated[_Number, Field(ge=0, le=1)] = 0.0
    """Lower bound of a masked weight; 0 for none."""
    overlong: OverlongConfig | None = None
    """Soft punishment of long responses; null for none."""
    dynamic_sampling: Natural = 0
    """Further rollouts of a step to replace groups whose scores are all equal (DAPO); 0 keeps them."""
    distillation: DistillationConfig | None = None
    """A teacher's distribution as a term of the loss; null for none."""

    @property
    def has_critic(self) -> bool:
        return self.advantage == "gae"

    @property
    def penalises_overlong(self) -> bool:
        return self.overlong is not None and self.overlong.enabled

    @model_validator(mode="after")
    def _consistent(self) -> AlgorithmConfig:
        if self.kl == "none" and self.kl_coefficient > 0:
            raise ValueError(
                f'algorithm.kl_coefficient {self.kl_coefficient} has no effect with kl "none"; name one or set 0'
            )
        if self.kl != "none" and self.kl_coefficient == 0:
            raise ValueError(f'algorithm.kl "{self.kl}" has no effect with kl_coefficient 0; set one, or kl "none"')
        if self.kl_placement == "reward" and self.kl != "none" and self.advantage not in ("gae", "reinforce_pp"):
            raise ValueError(
                f'algorithm.kl_placement "reward" needs rewards per token, which advantage "{self.advantage}" has '
                'not; use "loss"'
            )
        if (self.advantage == "none") != (self.policy_loss == "none"):
            raise ValueError(
                f'algorithm.advantage "{self.advantage}" and policy_loss "{self.policy_loss}" go together: both '
                '"none", or neither'
            )
        if self.policy_loss == "none" and self.distillation is None:
            raise ValueError('algorithm.policy_loss "none" leaves nothing to train on; add "distillation"')
        if self.dual_clip is not None and self.policy_loss != "ppo_clip":
            raise ValueError(f'algorithm.dual_clip has no effect with policy_loss "{self.policy_loss}"; set it to null')
        if self.correction == "none" and (self.correction_cap, self.correction_floor) != (2.0, 0.0):
            raise ValueError('algorithm.correction_cap and correction_floor have no effect with correction "none"')
        if self.correction.endswith("truncate") and self.correction_floor > 0:
            raise ValueError(
                f"algorithm.correction_floor {self.correction_floor} has no effect with correction "
                f'"{self.correction}"; set 0, or mask'
            )
        return self


class TaskConfig(_Section):
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
    max_prompt_tokens: Count | None = None
    """A longer prompt is dropped and counted in the metrics; null takes any that the model has positions for."""
    draft_tokens: Natural = 0
    """Tokens that the model's drafter proposes at a time; 0 decodes without it."""
    draft_rows: Count = 16
    """Most rows that are decoded together when drafting: the row with the fewest accepted drafts holds up the rest."""


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


LogProbVariant = Literal["dense", "logsumexp", "chunked", "fused"]


class LogProbConfig(_Section):
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
