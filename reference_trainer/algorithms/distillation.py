"""On-policy distillation: how far the policy's next-token distribution is from a teacher's, position by position.

Agarwal et al., "On-Policy Distillation of Language Models" (GKD), arXiv:2306.13649. The student's distribution is p,
the teacher's q; the teacher never gets a gradient.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from reference_trainer.algorithms.chunks import in_recomputed_chunks
from reference_trainer.algorithms.logprobs import at_least_float32, head_logits

Divergence = Literal["reverse_kl", "forward_kl", "jsd"]
Tail = Literal["lumped", "renormalised"]


def divergence(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    *,
    kind: Divergence = "reverse_kl",
    jsd_beta: float = 0.5,
    top_k: int = 0,
    tail: Tail = "lumped",
    temperature: float = 1.0,
) -> torch.Tensor:
    """Divergence at each position, `(N,)`, from logits `(N, V)` of both sides, each divided by the temperature.

    - `reverse_kl` KL(p || q); `forward_kl` KL(q || p); `jsd` β KL(q || m) + (1 - β) KL(p || m), m = βq + (1 - β)p.
    - `top_k` > 0 looks at the teacher's k likeliest tokens alone, of equal ones those with lower ids. What is left over
      is one token more (`lumped`), or nothing, both sides being brought back to 1 (`renormalised`; undefined where the
      student gives none of the k any probability). 0, or k ≥ V, is the whole vocabulary.

    0 log 0 is 0, so a logit of -inf on both sides adds nothing. A KL is infinite where its second side rules out what
    its first does not.
    """
    _require(student_logits.shape == teacher_logits.shape, _shapes(student_logits, teacher_logits))
    _require(temperature > 0, f"temperature is {temperature}; it should be positive")
    _require(top_k >= 0, f"top_k is {top_k}; it should be positive, or 0 for the whole vocabulary")
    _require(0 < jsd_beta < 1, f"jsd_beta is {jsd_beta}; it should lie between 0 and 1")
    teacher_logits = teacher_logits.detach()
    ids = likeliest(teacher_logits, top_k) if 0 < top_k < teacher_logits.shape[-1] else None
    log_p, log_q = (
        _log_probs(at_least_float32(logits) / temperature, ids, tail) for logits in (student_logits, teacher_logits)
    )
    match kind:
        case "reverse_kl":
            return _kl(log_p, log_q)
        case "forward_kl":
            return _kl(log_q, log_p)
        case "jsd":
            log_m = _log_mixture(log_q, log_p, jsd_beta)
            return jsd_beta * _kl(log_q, log_m) + (1 - jsd_beta) * _kl(log_p, log_m)


def distillation_from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    *,
    softcap: float | None = None,
    teacher_softcap: float | None = None,
    temperature: float = 1.0,
    kind: Divergence = "reverse_kl",
    jsd_beta: float = 0.5,
    top_k: int = 0,
    tail: Tail = "lumped",
    variant: Literal["dense", "fused"] = "dense",
    chunk: int = 512,
) -> torch.Tensor:
    """`divergence` at each position, `(N,)`, from hidden states `(N, H)` and heads `(V, H)`; H may differ.

    fused: `chunk` positions at a time, whose logits are computed again in the backward pass.
    """
    _require(len(weight) == len(teacher_weight), _shapes(weight, teacher_weight))
    _require(chunk >= 1, f"chunk is {chunk}; a chunk has one position at least")

    def whole(
        hidden: torch.Tensor, teacher_hidden: torch.Tensor, weight: torch.Tensor, teacher_weight: torch.Tensor
    ) -> tuple[torch.Tensor]:
        with torch.no_grad():
            teacher_logits = head_logits(teacher_hidden, teacher_weight, softcap=teacher_softcap)
        found = divergence(
            head_logits(hidden, weight, softcap=softcap),
            teacher_logits,
            kind=kind,
            jsd_beta=jsd_beta,
            top_k=top_k,
            tail=tail,
            temperature=temperature,
        )
        return (found,)

    teacher_hidden, teacher_weight = teacher_hidden.detach(), teacher_weight.detach()
    if variant == "dense":
        return whole(hidden, teacher_hidden, weight, teacher_weight)[0]
    return in_recomputed_chunks(whole, (hidden, teacher_hidden), (weight, teacher_weight), chunk=chunk)[0]


def likeliest(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ids of the k largest logits of each row, `(N, k)`; of equal ones those with lower ids (topk promises none)."""
    vocabulary = logits.shape[-1]
    values, ids = logits.topk(k)  # the largest first, so that those equal to the last stand at the end
    last = values[:, -1:]
    from_the_end = vocabulary - torch.arange(vocabulary, dtype=torch.int32, device=logits.device)
    lowest = vocabulary - torch.where(logits == last, from_the_end, 0).topk(k).values.long()
    rank = torch.arange(k, device=logits.device) - (values > last).sum(-1, keepdim=True)
    return torch.where(values == last, lowest.gather(-1, rank.clamp(min=0)), ids)


def _log_probs(scaled: torch.Tensor, ids: torch.Tensor | None, tail: Tail) -> torch.Tensor:
    """Log-probs of all tokens `(N, V)`; of the chosen ids `(N, k)`, and of the others as one more `(N, k + 1)`."""
    if ids is None:
        return torch.log_softmax(scaled, dim=-1)
    if tail == "renormalised":
        return torch.log_softmax(scaled.gather(-1, ids), dim=-1)
    log_probs = torch.log_softmax(scaled, dim=-1)
    # 1 - Σ p would lose the tail's digits where it is small, and forward KL needs its logarithm.
    others = log_probs.scatter(-1, ids, -torch.inf)
    never = others.amax(-1, keepdim=True) == -torch.inf  # where its gradient would be NaN
    rest = others.masked_fill(never, 0.0).logsumexp(-1, keepdim=True).masked_fill(never, -torch.inf)
    return torch.cat([log_probs.gather(-1, ids), rest], dim=-1)


def _kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    """Σ a (log a - log b) over what a gives a probability, `(N, C)` to `(N,)`."""
    a = log_a.exp()
    never = a == 0
    return (a * (log_a.masked_fill(never, 0.0) - log_b.masked_fill(never, 0.0))).sum(-1)


def _log_mixture(log_q: torch.Tensor, log_p: torch.Tensor, beta: float) -> torch.Tensor:
    """log(βq + (1 - β)p); finite, and of no account, where both are 0, since its gradient would be NaN."""
    never = torch.maximum(log_q, log_p) == -torch.inf
    return torch.logaddexp(
        log_q.masked_fill(never, 0.0) + math.log(beta), log_p.masked_fill(never, 0.0) + math.log1p(-beta)
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _shapes(student: torch.Tensor, teacher: torch.Tensor) -> str:
    return (
        f"the student's is {tuple(student.shape)} and the teacher's {tuple(teacher.shape)}; distillation needs the "
        "same positions and one vocabulary"
    )
