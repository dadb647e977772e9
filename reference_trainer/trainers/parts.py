"""Which parameters are trained together: each part has an optimizer and a gradient norm of its own."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from reference_trainer.models.critic import Critic
from reference_trainer.models.drafter import drafter_of


def trained_parts(policy: PreTrainedModel, critic: Critic | None) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """Names and trainable parameters of `policy`, and of `drafter` and `critic` where there is one.

    The drafter is apart from the policy that it hangs on: a joint gradient norm would let the one's gradients shorten
    the other's step, and the policy's course would hang on whether somebody drafts for it. Names are as in
    `policy.named_parameters()`; the critic's stand behind `critic.`.
    """
    drafter = drafter_of(policy)
    drafting: set[int] = set()
    if isinstance(drafter, nn.Module):
        drafting = {id(parameter) for parameter in drafter.parameters()}
    trained = [(name, parameter) for name, parameter in policy.named_parameters() if parameter.requires_grad]
    parts = {"policy": [(name, parameter) for name, parameter in trained if id(parameter) not in drafting]}
    if drafter is not None:
        parts["drafter"] = [(name, parameter) for name, parameter in trained if id(parameter) in drafting]
    if critic is not None:
        parts["critic"] = [
            (f"critic.{name}", parameter) for name, parameter in critic.named_parameters() if parameter.requires_grad
        ]
    return parts
