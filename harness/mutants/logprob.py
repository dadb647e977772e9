"""Defects that the cases of harness/cases/logprob.py must catch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.patching import replace_everywhere, replace_method

_LAYOUT = "logprob.layout-invariant"


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
    from reference_trainer.trainers import sync

    sound = sync.SyncTrainer._log_probs_under

    def defective(self: Any, policy: Any, rows: Any) -> Any:
        hit()
        return sound(self, policy, rows).bfloat16().float()

    replace_method(sync.SyncTrainer, "_log_probs_under", defective)


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
)
