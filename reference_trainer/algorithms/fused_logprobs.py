"""Log-probs and entropies from hidden states, with a backward pass of its own: the logits are never there as a whole.

Forward takes a few positions at a time over the whole vocabulary and keeps one number a position, the log-sum-exp.
With it a logit alone gives its probability, so that backward takes a few vocabulary entries at a time over all
positions: their rows of the head's gradient are then one product, summed in the product's own precision and rounded
once. (A few positions at a time would add up the head's gradient in half precision, or hold it in float32.)
"""

from __future__ import annotations

from typing import Any

import torch

_ALIGNED = 64  # blocks of the vocabulary have a multiple of it where they can: products are slower at odd widths


def fused_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float,
    softcap: float | None,
    chunk: int,
    with_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-prob of each label and entropy (None when not asked for), `(N,)` each; see `log_probs_from_hidden`.

    Beyond inputs, outputs and gradients it holds at most three times `chunk` × V numbers of float32, and in backward
    `(N, H)` of float32. It can be differentiated once.
    """
    log_probs, entropies = _FusedLogProbs.apply(hidden, weight, labels, temperature, softcap, chunk, with_entropy)
    return log_probs, entropies if with_entropy else None


class _Scratch:
    """Room for logits in the inputs' type and for numbers in the wider type, made once and used for every part."""

    def __init__(self, like: torch.Tensor, *, wide: torch.dtype, numbers: int, wide_buffers: int) -> None:
        self._wide = [like.new_empty(numbers, dtype=wide) for _ in range(wide_buffers)]
        self._logits = self._wide[0] if like.dtype == wide else like.new_empty(numbers)

    def logits(self, rows: int, columns: int) -> torch.Tensor:
        return self._logits[: rows * columns].view(rows, columns)

    def wide(self, index: int, rows: int, columns: int) -> torch.Tensor:
        return self._wide[index][: rows * columns].view(rows, columns)


class _FusedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        temperature: float,
        softcap: float | None,
        chunk: int,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        count, vocabulary = len(hidden), len(weight)
        log_probs, log_sums, entropies = (hidden.new_zeros(count, dtype=wide) for _ in range(3))
        scratch = _Scratch(hidden, wide=wide, numbers=min(chunk, count) * vocabulary, wide_buffers=2)
        for start in range(0, count, chunk):
            at = slice(start, min(start + chunk, count))
            rows = at.stop - at.start
            logits = torch.mm(hidden[at], weight.T, out=scratch.logits(rows, vocabulary))
            scaled = _scaled(logits, scratch.wide(0, rows, vocabulary), temperature, softcap)
            largest = scaled.amax(-1, keepdim=True)
            chosen = scaled.gather(-1, labels[at, None]).sub_(largest)
            scaled.sub_(largest)
            weights = torch.exp(scaled, out=scratch.wide(1, rows, vocabulary))
            total = weights.sum(-1)
            log_total = total.log()
            log_probs[at] = chosen[:, 0] - log_total
            log_sums[at] = largest[:, 0] + log_total
            if with_entropy:
                entropies[at] = log_total - weights.mul_(scaled).sum(-1) / total
        ctx.save_for_backward(hidden, weight, labels, log_sums, entropies)
        ctx.settings = temperature, softcap, chunk
        ctx.set_materialize_grads(False)
        if not with_entropy:
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(
        ctx: Any, by_log_prob: torch.Tensor | None, by_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: what follows has no graph
            raise RuntimeError('fused log-probs can be differentiated once only; use the variant "chunked" or "dense"')
        hidden, weight, labels, log_sums, entropies = ctx.saved_tensors
        temperature, softcap, chunk = ctx.settings
        if by_log_prob is None and by_entropy is None:
            return (None,) * 7
        count, vocabulary, wide = len(hidden), len(weight), log_sums.dtype
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        by_hidden = torch.zeros(hidden.shape, dtype=wide, device=hidden.device) if wants_hidden else None
        by_weight = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device) if wants_weight else None
        width = _block_width(chunk * vocabulary // max(count, 1), vocabulary)
        buffers = 1 + (by_entropy is not None) + (softcap is not None)
        scratch = _Scratch(hidden, wide=wide, numbers=count * width, wide_buffers=buffers)
        for start in range(0, vocabulary if count else 0, width):
            block = slice(start, min(start + width, vocabulary))
            columns = block.stop - block.start
            logits = torch.mm(hidden, weight[block].T, out=scratch.logits(count, columns))
            room = [scratch.wide(index, count, columns) for index in range(buffers)]
            scaled = _scaled(logits, room[0], temperature, softcap)
            # Both gradients are by the scaled logits s; the last factor takes them to the logits themselves.
            slope = _slope(scaled, room[-1], temperature, softcap) if softcap is not None else None
            gradient = _minus_p_weighted(scaled, log_sums, entropies, by_log_prob, by_entropy, room)
            if by_log_prob is not None:
                _add_at_labels(gradient, labels - start, by_log_prob)
            if slope is not None:
                gradient.mul_(slope)
            if temperature != 1:
                gradient.div_(temperature)
            by_logits = gradient if logits.dtype == wide else logits.copy_(gradient)
            if by_weight is not None:
                torch.mm(by_logits.T, hidden, out=by_weight[block])
            if by_hidden is not None:
                by_hidden += by_logits @ weight[block]
        return None if by_hidden is None else by_hidden.to(hidden.dtype), by_weight, *(None,) * 5


def _block_width(fitting: int, vocabulary: int) -> int:
    """Vocabulary entries of one block: at most so many as fit, and at least one."""
    if fitting >= vocabulary:
        return vocabulary
    return max(fitting // _ALIGNED * _ALIGNED or fitting, 1)


def _scaled(logits: torch.Tensor, room: torch.Tensor, temperature: float, softcap: float | None) -> torch.Tensor:
    """s = cap · tanh(z / cap) / temperature, in `room`, which may be the logits themselves."""
    if room.dtype != logits.dtype:
        room.copy_(logits)
    if softcap is not None:
        room.div_(softcap).tanh_().mul_(softcap)
    return room.div_(temperature) if temperature != 1 else room


def _slope(scaled: torch.Tensor, room: torch.Tensor, temperature: float, softcap: float) -> torch.Tensor:
    """Derivative of the soft cap, 1 - tanh²(z / cap), from the scaled logits."""
    torch.mul(scaled, temperature / softcap, out=room)
    return room.square_().neg_().add_(1.0)


def _minus_p_weighted(
    scaled: torch.Tensor,
    log_sums: torch.Tensor,
    entropies: torch.Tensor,
    by_log_prob: torch.Tensor | None,
    by_entropy: torch.Tensor | None,
    room: list[torch.Tensor],
) -> torch.Tensor:
    """-p_j (g + g' (log p_j + H)) of one block `(N, block)`, for ∂ log p_label / ∂s_j = [j = label] - p_j and
    ∂H / ∂s_j = -p_j (log p_j + H); g and g' are what comes down to log-prob and entropy."""
    log_probs = scaled.sub_(log_sums[:, None])  # room[0]
    if by_entropy is None:
        assert by_log_prob is not None
        return log_probs.exp_().mul_(-by_log_prob[:, None])
    probs = torch.exp(log_probs, out=room[1])
    log_probs.add_(entropies[:, None]).mul_(by_entropy[:, None])
    if by_log_prob is not None:
        log_probs.add_(by_log_prob[:, None])
    return probs.mul_(log_probs).neg_()


def _add_at_labels(gradient: torch.Tensor, columns: torch.Tensor, amounts: torch.Tensor) -> None:
    """Add one amount a row at its column, in place; a column outside this block adds nothing."""
    inside = (columns >= 0) & (columns < gradient.shape[1])
    at = columns.clamp(0, gradient.shape[1] - 1)
    gradient.scatter_add_(1, at[:, None], amounts.masked_fill(~inside, 0.0)[:, None])
