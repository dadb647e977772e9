"""What one training step tells. None means not measured, never zero."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Losses and gradient figures are means over the step's optimizer updates; a step without tokens gives zeros."""

    step: int
    """Number of the step, from 0."""
    reward: float
    """Mean score of the responses."""
    reward_std: float
    """Standard deviation of the scores over the batch (ddof 0)."""
    groups: int
    """Prompts in the batch."""
    degenerate_groups: int
    """Prompts whose samples all scored the same, so that they teach nothing."""
    discarded_groups: int
    """Prompts whose samples all scored the same and that dynamic sampling replaced."""
    dropped_prompts: int
    """Prompts longer than the budget, which others replaced."""
    overlong_penalty: float
    """Mean of what was taken from the scores for length; at most 0."""
    kl: float | None
    """KL to the reference policy before the update, k3 estimate, token mean, nats; None where nobody asked for it."""
    entropy: float
    """Entropy of the policy, mean over response tokens, nats."""
    logprob_gap: float
    """Largest |log-prob of the trainer - log-prob of the engine| over the sampled tokens, before the update."""
    logprob_gap_mean: float
    """Mean of the same."""
    sync_gap: float
    """Largest such gap of a few greedy samples drawn right after the weight sync: a stale engine shows here."""
    loss: float
    """The whole loss."""
    policy_loss: float | None
    """None without a surrogate (pure distillation)."""
    value_loss: float | None
    """None without a critic."""
    distillation_loss: float | None
    """Divergence from the teacher, aggregated; None without one."""
    mtp_loss: float | None
    """Negative log-prob under the drafter, aggregated; None without one that is trained."""
    correction_weight: float | None
    """Mean off-policy weight of the tokens; None without a correction."""
    correction_fraction: float | None
    """Share of the tokens whose weight was cut or masked."""
    clip_fraction: float | None
    """Share of response tokens at which the clipped surrogate was in force."""
    value_clip_fraction: float | None
    approx_kl: float | None
    """KL from the rollout's policy to the updated one, k3 estimate, nats."""
    grad_norm: float
    """Norm of the policy's gradient before clipping."""
    critic_grad_norm: float | None
    drafter_grad_norm: float | None
    learning_rate: float
    """Of the policy, in the last update of the step."""
    updates: int
    """Optimizer updates in the step."""
    staleness: int
    """Largest number of weight versions that a sample was behind the policy it trained."""
    tokens: int
    """Prompt and response tokens of the batch."""
    response_tokens: int
    prompt_length: float
    """Mean, in tokens."""
    response_length: float
    """Mean, in tokens."""
    response_length_max: int
    truncated_fraction: float
    """Share of responses that spent their budget without an end token."""
    step_seconds: float
    rollout_seconds: float
    reward_seconds: float
    logprob_seconds: float
    """Log-probs of policy and reference, and values, before the update."""
    update_seconds: float
    sync_seconds: float
    """Weight sync with its probe."""
    live_bytes: int
    """Held by this process at the end of the step; replicas in processes of their own are not counted."""
    peak_bytes: int
    """Most that this process has held so far."""
    drafts_proposed: int | None
    """None without a drafter."""
    drafts_accepted: int | None
    draft_acceptance: tuple[float, ...]
    """Share of the drafts accepted at each draft position; empty without a drafter."""
    timeouts: int | None
    """Scorers that ran out of time; None where they run without a limit."""

    def as_dict(self) -> dict[str, float | None]:
        """Plain numbers by name; `draft_acceptance` is told position by position, from `draft_acceptance_1`."""
        plain = asdict(self)
        by_position = plain.pop("draft_acceptance")
        return plain | {f"draft_acceptance_{index}": share for index, share in enumerate(by_position, start=1)}
