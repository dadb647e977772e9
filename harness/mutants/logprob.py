"""Defects that the cases of harness/cases/logprob.py must catch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere, replace_method

_LAYOUT = "logprob.layout-invariant"
_CHUNKED = "logprob.chunked-equals-dense"
_ORACLE = "loss.matches-oracle"


def _mask_of_the_response(hit: Hit) -> None:
    import torch

    from reference_trainer.data import layout

    sound = layout.lay_out

    def defective(rows: Any, **how: Any) -> Any:
        hit()
        batch = sound(rows, **how)
        seen = torch.zeros_like(batch.attention_mask)
        for index, (_, response, _) in enumerate(rows):
            first = int(batch.predictor[index, 0]) + 1 if len(response) else 0
            seen[index, first : first + len(response)] = 1
        return replace(batch, attention_mask=seen)

    replace_everywhere(sound, defective)


def _labels_shifted_under_left_padding(hit: Hit) -> None:
    from reference_trainer.data import layout

    sound = layout.lay_out

    def defective(rows: Any, *, side: Any = "right", **how: Any) -> Any:
        hit()
        batch = sound(rows, side=side, **how)
        return replace(batch, predictor=batch.predictor + 1 * batch.present) if side == "left" else batch

    replace_everywhere(sound, defective)


def _prompt_length_of_the_first_row(hit: Hit) -> None:
    from reference_trainer.data import layout

    sound = layout.lay_out

    def defective(rows: Any, *, side: Any = "right", **how: Any) -> Any:
        hit()
        batch = sound(rows, side=side, **how)
        if side == "left" or not rows:
            return batch
        predictor = batch.predictor.clone()
        for index, (prompt, response, _) in enumerate(rows):
            predictor[index, : len(response)] += len(rows[0].prompt) - len(prompt)
        return replace(batch, predictor=predictor.clamp(max=batch.input_ids.shape[1] - 1))

    replace_everywhere(sound, defective)


def _padding_is_attended(hit: Hit) -> None:
    import torch

    from reference_trainer.data import layout

    sound = layout.lay_out

    def defective(rows: Any, **how: Any) -> Any:
        hit()
        batch = sound(rows, **how)
        return replace(batch, attention_mask=torch.ones_like(batch.attention_mask))

    replace_everywhere(sound, defective)


def _old_log_probs_in_half_precision(hit: Hit) -> None:
    from reference_trainer.trainers import assess

    sound = assess.Assessor._log_probs_under

    def defective(self: Any, policy: Any, rows: Any) -> Any:
        hit()
        return sound(self, policy, rows).bfloat16().float()

    replace_method(assess.Assessor, "_log_probs_under", defective)


def _every_chunk_is_saved(hit: Hit) -> None:
    import torch

    from reference_trainer.algorithms import chunks

    def defective(function: Any, by_position: Any, shared: Any, *, chunk: int) -> Any:
        hit()
        parts = [
            function(*(tensor[start : start + chunk] for tensor in by_position), *shared)
            for start in range(0, max(len(by_position[0]), 1), chunk)
        ]
        return tuple(torch.cat(outputs) for outputs in zip(*parts, strict=True))

    replace_everywhere(chunks.in_recomputed_chunks, defective)


def _last_chunk_dropped(hit: Hit) -> None:
    import torch

    from reference_trainer.algorithms import chunks

    sound = chunks.in_recomputed_chunks

    def defective(function: Any, by_position: Any, shared: Any, *, chunk: int) -> Any:
        count = len(by_position[0])
        whole = count // chunk * chunk
        if whole in (0, count):
            return sound(function, by_position, shared, chunk=chunk)
        hit()
        found = sound(function, [tensor[:whole] for tensor in by_position], shared, chunk=chunk)
        return tuple(torch.cat([x, x.new_zeros(count - whole)]) for x in found)

    replace_everywhere(sound, defective)


def _log_sum_in_half_precision(hit: Hit) -> None:
    from reference_trainer.algorithms import logprobs

    sound = logprobs._from_logits

    def defective(scaled: Any, labels: Any, *, by_log_sum: bool, **rest: Any) -> Any:
        if not by_log_sum:
            return sound(scaled, labels, by_log_sum=by_log_sum, **rest)
        hit()
        log_sum = scaled.bfloat16().logsumexp(-1).to(scaled.dtype)
        _, *others = sound(scaled, labels, by_log_sum=True, **rest)
        return scaled.gather(-1, labels[:, None])[:, 0] - log_sum, *others

    replace_everywhere(sound, defective)


def _dense_under_another_name(hit: Hit) -> None:
    from reference_trainer.algorithms import fused_logprobs, logprobs

    def defective(hidden: Any, weight: Any, labels: Any, *, chunk: int, **settings: Any) -> Any:
        hit()
        return logprobs.log_probs_from_hidden(hidden, weight, labels, variant="dense", **settings)

    replace_everywhere(fused_logprobs.fused_log_probs, defective)


def _soft_cap_without_its_slope(hit: Hit) -> None:
    from reference_trainer.algorithms import fused_logprobs

    def defective(scaled: Any, room: Any, temperature: float, softcap: float) -> Any:
        hit()
        return room.fill_(1.0)

    replace_everywhere(fused_logprobs._slope, defective)


def _student_and_teacher_swapped(hit: Hit) -> None:
    from reference_trainer.algorithms import distillation

    sound = distillation._kl

    def defective(log_a: Any, log_b: Any) -> Any:
        hit()
        return sound(log_b, log_a)

    replace_everywhere(sound, defective)


def _tail_left_out(hit: Hit) -> None:
    from reference_trainer.algorithms import distillation

    sound = distillation._log_probs

    def defective(scaled: Any, ids: Any, tail: Any) -> Any:
        if ids is None or tail == "renormalised":
            return sound(scaled, ids, tail)
        hit()
        return sound(scaled, ids, tail)[:, :-1]

    replace_everywhere(sound, defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_LAYOUT}:mask-of-the-response",
        case=_LAYOUT,
        defect="the attention mask is that of the response: the prompt is not attended to",
        install=_mask_of_the_response,
    ),
    Mutant(
        name=f"{_LAYOUT}:labels-shifted-under-left-padding",
        case=_LAYOUT,
        defect="under left padding a label is read off the logits one column late",
        install=_labels_shifted_under_left_padding,
    ),
    Mutant(
        name=f"{_LAYOUT}:prompt-length-of-the-first-row",
        case=_LAYOUT,
        defect="the whole batch is read as if its prompts were as long as the first",
        install=_prompt_length_of_the_first_row,
    ),
    Mutant(
        name=f"{_LAYOUT}:old-log-probs-in-half-precision",
        case=_LAYOUT,
        defect="old log-probs are kept in bfloat16, so that the ratio is not 1 before any update",
        install=_old_log_probs_in_half_precision,
    ),
    Mutant(
        name=f"{_LAYOUT}:padding-is-attended",
        case=_LAYOUT,
        defect="Qwen3.5's recurrent state passes through left padding: no attention mask reaches it",
        install=_padding_is_attended,
        only_model="qwen3.5",
    ),
    Mutant(
        name=f"{_CHUNKED}:every-chunk-is-saved",
        case=_CHUNKED,
        defect="chunks under plain autograd: each one's intermediate results are kept for the backward pass",
        install=_every_chunk_is_saved,
    ),
    Mutant(
        name=f"{_CHUNKED}:last-chunk-dropped",
        case=_CHUNKED,
        defect="positions after the last whole chunk get 0",
        install=_last_chunk_dropped,
    ),
    Mutant(
        name=f"{_CHUNKED}:log-sum-in-half-precision",
        case=_CHUNKED,
        defect="the log-sum-exp over the vocabulary is made in bfloat16",
        install=_log_sum_in_half_precision,
    ),
    Mutant(
        name=f"{_CHUNKED}:dense-under-another-name",
        case=_CHUNKED,
        defect="the variant called fused holds all logits",
        install=_dense_under_another_name,
    ),
    Mutant(
        name=f"{_CHUNKED}:soft-cap-without-its-slope",
        case=_CHUNKED,
        defect="the fused backward pass forgets the derivative of the soft cap",
        install=_soft_cap_without_its_slope,
    ),
    Mutant(
        name=f"{_ORACLE}:student-and-teacher-swapped",
        case=_ORACLE,
        defect="reverse KL is computed where forward KL is asked for, and the other way round",
        install=_student_and_teacher_swapped,
    ),
    Mutant(
        name=f"{_ORACLE}:tail-left-out",
        case=_ORACLE,
        defect="a divergence over the teacher's likeliest tokens drops what is left over instead of lumping it",
        install=_tail_left_out,
    ),
)
