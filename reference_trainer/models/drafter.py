"""What a drafter is to the trainer and to the engine, and how a policy comes by one.

A drafter is a submodule of its policy (`policy.mtp` or `policy.assistant`), so that whatever carries the policy's
weights carries the drafter's. In training:

    log_probs, predictable = drafter_log_probs(policy, hidden, batch, temperature=…, variant=…, chunk=…)
    loss = aggregate(mtp_loss(log_probs), batch.present & predictable, …)     # algorithms/mtp.py

`hidden` `(B, L, H)` are the policy's last hidden states; what the policy gave is detached, so its gradients are
bit-equal with and without a drafter.

Positions: the target has read tokens x[0..i] and gave the hidden state h[i]; x[i+1] is known. The pair (h[i], x[i+1])
predicts x[i+2]. A further token is predicted with the drafter's own state in the place of h and its own draft in the
place of x.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import nn
from transformers import Cache, PreTrainedModel

from reference_trainer.algorithms.logprobs import log_probs_from_hidden
from reference_trainer.config import ConfigError, DrafterConfig, LogProbVariant
from reference_trainer.data.layout import RowBatch
from reference_trainer.models.outputs import Head
from reference_trainer.models.rewinding import RewindableCache
from reference_trainer.seeds import derive_seed


class Drafting(Protocol):
    """Drafts for one batch of rows that decode in step."""

    def settle(self, tokens: torch.Tensor, hidden: torch.Tensor, cache: Cache) -> None:
        """n more positions hold for good, and drafts made since the last call are void.

        tokens `(B, n + 1)` at these positions and the one after, hidden `(B, n, H)` and `cache` of the target.
        """
        ...

    def propose(self, last: torch.Tensor | None) -> torch.Tensor:
        """Logits `(B, V)` of the next token: after what is settled (None), or after the draft `last` `(B,)`."""
        ...


class Drafter(Protocol):
    """Proposes tokens for a policy."""

    def drafting(self, policy: PreTrainedModel) -> Drafting:
        """Begin with a batch of rows."""
        ...


class TrainedDrafter(Drafter, Protocol):
    """A drafter with weights of its own, trained beside its policy."""

    def states(self, policy: PreTrainedModel, hidden: torch.Tensor, batch: RowBatch) -> tuple[torch.Tensor, Head]:
        """State `(B, L - 1, D)` at each pair (h[i], x[i+1]), and the head that makes logits of x[i+2] of it."""
        ...


def attach_drafter(
    policy: PreTrainedModel, drafter: DrafterConfig, *, seed: int, dtype: torch.dtype, std: float
) -> None:
    """Give the policy a drafter with matrices drawn from N(0, std²), in evaluation mode.

    Raises ConfigError when that kind of drafter can't read what the policy gives.
    """
    from reference_trainer.models.assistant import build_assistant  # here: both know this module's protocols
    from reference_trainer.models.mtp import build_mtp
    from reference_trainer.models.precision import cast_weights

    build = {"mtp": build_mtp, "assistant": build_assistant}[drafter.kind]
    own_seed = derive_seed(seed, "drafter")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(own_seed)
        module: nn.Module = build(policy, drafter)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(own_seed)
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, std, generator=generator)
    cast_weights(module, dtype)
    policy.add_module(drafter.kind, module.eval())


def drafter_of(policy: nn.Module) -> TrainedDrafter | None:
    """The policy's drafter; None when it has none."""
    found = getattr(policy, "mtp", None)
    return cast("TrainedDrafter | None", found if found is not None else getattr(policy, "assistant", None))


def drafter_log_probs(
    policy: PreTrainedModel,
    hidden: torch.Tensor,
    batch: RowBatch,
    *,
    temperature: float = 1.0,
    variant: LogProbVariant = "dense",
    chunk: int = 512,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each response token as the drafter's first prediction, `(B, T)`, and where there is one, `(B, T)`.

    `hidden` `(B, L, H)` are the policy's last hidden states. The first token after a prompt of one token is not
    predictable: no hidden state lies two positions before it. Raises ValueError when the policy has no drafter.
    """
    drafter = drafter_of(policy)
    if drafter is None:
        raise ValueError("the policy has no drafter; set model.drafter")
    first = batch.position_ids.gather(1, batch.predictor) == 0 if batch.position_ids.shape[1] else ~batch.present
    predictable = batch.present & ~first
    log_probs = torch.zeros(batch.present.shape, device=hidden.device)
    if not predictable.any():
        return log_probs, predictable
    states, head = drafter.states(policy, hidden.detach(), batch)
    rows = torch.arange(len(hidden), device=hidden.device)[:, None].expand_as(batch.predictor)
    found, _ = log_probs_from_hidden(
        states[rows[predictable], batch.predictor[predictable] - 1],
        head.weight,
        batch.labels[predictable],
        temperature=temperature,
        softcap=head.softcap,
        variant=variant,
        chunk=chunk,
    )
    return found.new_zeros(predictable.shape).masked_scatter(predictable, found), predictable


def forget_drafts(cache: RewindableCache, drafts: int) -> None:
    """Take back what a drafter's own cache holds of its last drafts."""
    cache.keep(processed=drafts, kept=0)


def unsuited(policy: PreTrainedModel, kind: str, *, because: str, remedy: str) -> ConfigError:
    return ConfigError(f'model.drafter.kind "{kind}" does not suit {type(policy).__name__}: {because}; {remedy}')
