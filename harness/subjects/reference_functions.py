"""The reference's pure functions under the names that the cases know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch

from harness.subjects.protocol import FunctionAnswer
from reference_trainer.algorithms import (
    advantages,
    aggregation,
    corrections,
    distillation,
    groups,
    kl,
    logprobs,
    losses,
    shaping,
)
from reference_trainer.rollout import speculative

Tensors = Mapping[str, torch.Tensor]
Outputs = dict[str, torch.Tensor]


def _token_loss(answer: losses.TokenLoss) -> Outputs:
    return {"value": answer.loss, **answer.metrics}


def _policy_loss(function: str, x: Tensors, **settings: Any) -> Outputs:
    inputs = (x["log_probs"], x["old_log_probs"], x["advantages"], x["mask"])
    return _token_loss(getattr(losses, function)(*inputs, weights=x.get("weights"), **settings))


def _from_hidden(x: Tensors, *, entropy_weight: float, strided: bool, **settings: Any) -> Outputs:
    hidden, weight = (x[name].T.contiguous().T if strided else x[name] for name in ("hidden", "weight"))
    log_probs, entropies = logprobs.log_probs_from_hidden(hidden, weight, x["tokens"], **settings)
    value = log_probs + entropy_weight * entropies if entropy_weight else log_probs
    return {"value": value, "log_probs": log_probs, "entropies": entropies}


def _correction(kind: Any, x: Tensors, **settings: Any) -> Outputs:
    found = corrections.importance_weights(x["old_log_probs"], x["rollout_log_probs"], x["mask"], kind=kind, **settings)
    return {"value": found.weights, **found.metrics}


def _gae(x: Tensors, **settings: Any) -> Outputs:
    found, returns = advantages.gae(x["rewards"], x["values"], x["mask"], **settings)
    return {"advantages": found, "returns": returns}


def _propose(x: Tensors) -> Outputs:
    tokens, q = speculative.propose(x["logits"], x["uniforms"], **_filters(x))
    return {"tokens": tokens, "probabilities": q}


def _verify(x: Tensors) -> Outputs:
    uniforms = x["accept_uniforms"], x["choice_uniforms"]
    verdict = speculative.verify(x["logits"], x["drafts"], x["draft_probabilities"], *uniforms, **_filters(x))
    return verdict._asdict()


def _filters(x: Tensors) -> dict[str, torch.Tensor]:
    return {name: x[name] for name in ("temperature", "top_p", "top_k")}


# The functions are looked up when they are called, not when this table is made: a mutant replaces them in between.
_FUNCTIONS: dict[str, Callable[..., Outputs]] = {
    "log_probs.token": lambda x, **s: {"value": logprobs.token_log_probs(x["logits"], x["tokens"], **s)},
    "log_probs.entropy": lambda x, **s: {"value": logprobs.entropy(x["logits"], **s)},
    "log_probs.from_hidden": _from_hidden,
    "kl.k1": lambda x: {"value": kl.kl_estimate("k1", x["log_probs"], x["reference"])},
    "kl.k2": lambda x: {"value": kl.kl_estimate("k2", x["log_probs"], x["reference"])},
    "kl.k3": lambda x, **s: {"value": kl.kl_k3(x["log_probs"], x["reference"], **s)},
    "kl.abs": lambda x: {"value": kl.kl_estimate("abs", x["log_probs"], x["reference"])},
    "advantage.gae": _gae,
    "advantage.whiten": lambda x, **s: {"value": advantages.whiten(x["values"], x["mask"], **s)},
    "advantage.group": lambda x, **s: {"value": advantages.group_advantages(x["scores"], x["groups"].tolist(), **s)},
    "advantage.degenerate_groups": lambda x: {
        "value": torch.tensor(advantages.degenerate_groups(x["scores"], x["groups"].tolist()))
    },
    "advantage.keep_informative": lambda x: {
        "value": torch.tensor(groups.keep_informative(x["scores"], x["groups"].tolist()))
    },
    "advantage.rloo": lambda x, **s: {"value": advantages.rloo(x["scores"], x["groups"].tolist(), **s)},
    "advantage.reinforce_pp": lambda x, **s: {"value": advantages.reinforce_pp(x["rewards"], x["mask"], **s)},
    "advantage.reinforce_pp_baseline": lambda x, **s: {
        "value": advantages.reinforce_pp_baseline(x["scores"], x["groups"].tolist(), **s)
    },
    "advantage.remax": lambda x: {"value": advantages.remax(x["scores"], x["baselines"])},
    "policy_loss.ppo_clip": lambda x, **s: _policy_loss("ppo_clip_loss", x, **s),
    "policy_loss.ppo_dual_clip": lambda x, **s: _policy_loss("ppo_clip_loss", x, **s),
    "policy_loss.gspo": lambda x, **s: _policy_loss("gspo_loss", x, **s),
    "policy_loss.cispo": lambda x, **s: _policy_loss("cispo_loss", x, **s),
    **{
        f"correction.{kind}": lambda x, kind=kind, **s: _correction(kind, x, **s)
        for kind in get_args(corrections.Correction)
    },
    "reward.overlong": lambda x, **s: {"value": shaping.overlong_penalty(x["lengths"], **s)},
    "reward.kl_penalised": lambda x, **s: {"value": kl.kl_penalised_rewards(x["rewards"], x["kl"], x["mask"], **s)},
    **{
        f"distillation.{kind}": lambda x, kind=kind, **s: {
            "value": distillation.divergence(x["student"], x["teacher"], kind=kind, **s)
        }
        for kind in get_args(distillation.Divergence)
    },
    "speculative.propose": _propose,
    "speculative.verify": _verify,
    "value_loss.clipped": lambda x, **s: _token_loss(
        losses.value_loss(x["values"], x["old_values"], x["returns"], x["mask"], **s)
    ),
    **{
        f"aggregate.{mode}": lambda x, mode=mode, **s: {
            "value": aggregation.aggregate(x["values"], x["mask"], mode, **s)
        }
        for mode in get_args(aggregation.Aggregation)
    },
}
NAMES = tuple(_FUNCTIONS)


def call(
    name: str, inputs: Mapping[str, np.ndarray], *, settings: Mapping[str, Any], gradients_of: Sequence[str]
) -> FunctionAnswer:
    """Call one function. `settings["dtype"]` says bfloat16 where numpy can't; the rest are its keyword arguments."""
    keywords = dict(settings)
    half = keywords.pop("dtype", None) == "bfloat16"
    tensors = {key: _tensor(array, half=half) for key, array in inputs.items()}
    for key in gradients_of:
        tensors[key].requires_grad_()
    outputs = _FUNCTIONS[name](tensors, **keywords)
    gradients = {}
    if gradients_of:
        found = torch.autograd.grad(outputs["value"].sum(), [tensors[key] for key in gradients_of])
        gradients = {key: _array(gradient) for key, gradient in zip(gradients_of, found, strict=True)}
    return FunctionAnswer(outputs={key: _array(tensor) for key, tensor in outputs.items()}, gradients=gradients)


def _tensor(array: np.ndarray, *, half: bool) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.bfloat16() if half and tensor.is_floating_point() else tensor


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()
