"""The objective's settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from reference_trainer.config.fields import Count, Fraction, Natural, NonNegative, Number, Positive, Section, Switch


class OverlongConfig(Section):
    """DAPO's soft punishment of long responses: the score falls linearly over the last tokens of the budget."""

    enabled: Switch = True
    """False is as if the section were not there."""
    length: Natural = 0
    """Tokens of the budget over which it falls; at least 1 and at most rollout.max_tokens when enabled."""
    factor: NonNegative = 1.0
    """Most that is taken away."""


class DistillationConfig(Section):
    """On-policy distillation: the policy's distribution is drawn to a teacher's on its own responses."""

    coefficient: Positive = 1.0
    """Weight of the term."""
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    """KL(policy || teacher), KL(teacher || policy), or the generalised Jensen-Shannon divergence (GKD)."""
    jsd_beta: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    """Weight of the teacher in jsd's mixture."""
    top_k: Natural = 0
    """Only the teacher's k likeliest tokens; 0 takes the whole vocabulary."""
    tail: Literal["lumped", "renormalised"] = "lumped"
    """What top-k leaves over: one token more, or nothing and both sides brought back to 1."""
    teacher_steps: Natural = 100
    """Supervised updates by which the teacher is ahead of the policy's warm start."""
    teacher_checkpoint: str | None = None
    """Folder with a teacher of the policy's architecture; null makes one by `teacher_steps`."""


class AlgorithmConfig(Section):
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
    dual_clip: Annotated[Number, Field(gt=1)] | None = None
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
    correction_cap: Annotated[Number, Field(ge=1)] = 2.0
    """Upper bound of the weight."""
    correction_floor: Annotated[Number, Field(ge=0, le=1)] = 0.0
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
