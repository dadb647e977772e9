"""Defects that the cases of harness/cases/rollout.py must catch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutants.base import Hit, Mutant
from harness.mutants.loss import row_mean_unguarded
from harness.mutants.patching import replace_everywhere, replace_method

_EMPTY = "rollout.empty-sequence"
_AGREES = "rollout.logprob-agrees"


def _lists_on_empty(hit: Hit) -> None:
    from reference_trainer.data import padding

    sound = padding.pad_row

    def defective(tokens: Sequence[int], *, length: int, pad_id: int | None, **rest: Any) -> Any:
        hit()
        if not tokens:
            return [pad_id or 0] * length, [0] * length
        return sound(tokens, length=length, pad_id=pad_id, **rest)

    replace_everywhere(sound, defective)


def _pad_zero(hit: Hit) -> None:
    from reference_trainer.data import padding

    sound = padding.pad_row

    def defective(tokens: Sequence[int], *, pad_id: int | None, **rest: Any) -> Any:
        hit()
        return sound(tokens, pad_id=0, **rest)

    replace_everywhere(sound, defective)


def _mask_from_ids(hit: Hit) -> None:
    from reference_trainer.data import padding

    sound = padding.pad_row

    def defective(tokens: Sequence[int], *, pad_id: int | None, **rest: Any) -> Any:
        hit()
        ids, _ = sound(tokens, pad_id=pad_id, **rest)
        return ids, (ids != (pad_id or 0)).long()

    replace_everywhere(sound, defective)


def _per_token_metric_divides_by_zero(hit: Hit) -> None:
    from reference_trainer.algorithms import aggregation

    def defective(values: Any, mask: Any) -> float:
        hit()
        return (aggregation.masked_sum(values, mask) / mask.sum()).item()

    replace_everywhere(aggregation.token_mean, defective)


def _temperature_on_one_side(hit: Hit) -> None:
    from reference_trainer.algorithms import logprobs

    sound = logprobs.log_probs_from_hidden

    def defective(*inputs: Any, temperature: float = 1.0, **rest: Any) -> Any:
        hit()
        return sound(*inputs, **rest)

    replace_everywhere(sound, defective)


def _position_ids_from_the_padded_index(hit: Hit) -> None:
    import torch

    from reference_trainer.rollout import native

    generate, decode = native.NativeEngine.generate, native.NativeEngine._decode

    def remembers_width(self: Any, requests: Any) -> Any:
        self._width = max((len(request.prompt) for request in requests), default=0)
        return generate(self, requests)

    def defective(self: Any, requests: Any) -> Any:
        hit()
        model, forward = self.model, self.model.forward
        shift = self._width - len(requests[0].prompt)

        def shifted(**inputs: Any) -> Any:
            if at := inputs["past_key_values"].get_seq_length():
                inputs["position_ids"] = torch.full_like(inputs["input_ids"], at + shift)
            return forward(**inputs)

        model.forward = shifted
        try:
            return decode(self, requests)
        finally:
            del model.forward

    replace_method(native.NativeEngine, "generate", remembers_width)
    replace_method(native.NativeEngine, "_decode", defective)


def _log_probs_after_the_filter(hit: Hit) -> None:
    from reference_trainer.rollout import sampling

    sound = sampling.choose_tokens

    def defective(logits: Any, uniforms: Any, *, temperature: Any, top_p: Any, top_k: Any, banned: Any = None) -> Any:
        hit()
        tokens, _ = sound(logits, uniforms, temperature=temperature, top_p=top_p, top_k=top_k, banned=banned)
        scaled = (logits / temperature.to(logits.dtype)[:, None]).double().softmax(-1)
        kept = sampling.filter_top_p(sampling.filter_top_k(scaled, top_k), top_p)
        share = kept.gather(-1, tokens[:, None]).squeeze(-1) / kept.sum(-1)
        return tokens, share.log()

    replace_everywhere(sound, defective)


def _answers_by_replica(hit: Hit) -> None:
    from reference_trainer.rollout import replicas

    sound = replicas.ReplicaPool.generate

    def defective(self: Any, requests: Any) -> Any:
        hit()
        samples, count = sound(self, requests), len(self.pids)
        return [sample for index in range(count) for sample in samples[index::count]]

    replace_method(replicas.ReplicaPool, "generate", defective)


def _embedding_scale_lost(hit: Hit) -> None:
    import torch

    from reference_trainer.rollout import native

    sound = native.NativeEngine.__init__

    def defective(self: Any, model: Any, **rest: Any) -> None:
        hit()
        for module in model.modules():
            if isinstance(getattr(module, "embed_scale", None), torch.Tensor):
                module.embed_scale.fill_(1.0)
        sound(self, model, **rest)

    replace_method(native.NativeEngine, "__init__", defective)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name=f"{_EMPTY}:lists-on-empty",
        case=_EMPTY,
        defect="padding no tokens gives lists in place of tensors",
        install=_lists_on_empty,
    ),
    Mutant(
        name=f"{_EMPTY}:pad-zero",
        case=_EMPTY,
        defect="padding fills with 0, whatever the tokenizer's pad id",
        install=_pad_zero,
    ),
    Mutant(
        name=f"{_EMPTY}:mask-from-ids",
        case=_EMPTY,
        defect="the mask is read off the ids, so that a token equal to the pad id is lost",
        install=_mask_from_ids,
    ),
    Mutant(
        name=f"{_EMPTY}:per-token-metric-divides-by-zero",
        case=_EMPTY,
        defect="a metric per token divides by the number of tokens, also when there are none",
        install=_per_token_metric_divides_by_zero,
    ),
    Mutant(
        name=f"{_EMPTY}:masked-mean-unguarded",
        case=_EMPTY,
        defect="a row's mean divides by its length, also when that is 0",
        install=row_mean_unguarded,
    ),
    Mutant(
        name=f"{_EMPTY}:masked-mean-unguarded-in-gemma4",
        case=_EMPTY,
        defect="the same, and only in cells of Gemma4",
        install=row_mean_unguarded,
        only_model="gemma4",
    ),
    Mutant(
        name=f"{_AGREES}:temperature-on-one-side",
        case=_AGREES,
        defect="the trainer's log-probs are at temperature 1, the engine's at the rollout's",
        install=_temperature_on_one_side,
    ),
    Mutant(
        name=f"{_AGREES}:position-ids-from-the-padded-index",
        case=_AGREES,
        defect="a decoded token's position counts the padding that a longer batch mate would bring",
        install=_position_ids_from_the_padded_index,
    ),
    Mutant(
        name=f"{_AGREES}:log-probs-after-the-filter",
        case=_AGREES,
        defect="the engine tells log-probs of the distribution that top-k and top-p left",
        install=_log_probs_after_the_filter,
    ),
    Mutant(
        name=f"{_AGREES}:answers-by-replica",
        case=_AGREES,
        defect="samples come back replica by replica and not in the order of the requests",
        install=_answers_by_replica,
        only_topology="dp2",
    ),
    Mutant(
        name=f"{_AGREES}:embedding-scale-lost",
        case=_AGREES,
        defect="the engine's model lost the scale of its embeddings, a buffer that no checkpoint holds",
        install=_embedding_scale_lost,
        only_model="gemma4",
    ),
)
