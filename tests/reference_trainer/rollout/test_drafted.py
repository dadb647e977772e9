from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Cache, PreTrainedModel

from reference_trainer.config import ModelConfig
from reference_trainer.models.build import build_policy
from reference_trainer.models.drafter import Drafting
from reference_trainer.models.rewinding import RewindableCache
from reference_trainer.rollout.engine import FinishReason, Sample, SamplingRequest
from reference_trainer.rollout.kv_cache import roomy_cache
from reference_trainer.rollout.native import NativeEngine
from reference_trainer.rollout.replica_process import decode_sample
from reference_trainer.rollout.self_drafter import SelfDrafter
from tests.reference_trainer.tiny import MODELS


def policy(name: str = "qwen3", *, std: float = 0.3, drafter: bool = True) -> PreTrainedModel:
    kind = "assistant" if name.startswith("gemma4") else "mtp"
    settings = {"drafter": {"kind": kind}} if drafter else {}
    return build_policy(ModelConfig(**{**MODELS[name], "init_std": std, **settings}), seed=0, dtype=torch.float64)


def engine(model: PreTrainedModel, *, eos_id: int | None = None, **settings: Any) -> NativeEngine:
    return NativeEngine(model, eos_id=eos_id, pad_id=256, **settings)


def requests(count: int = 6, *, max_tokens: int = 12, **changes: Any) -> list[SamplingRequest]:
    return [
        SamplingRequest(
            prompt=tuple((7 * row + column) % 256 for column in range(1 + 4 * (row % 2))),
            seed=100 + row,
            max_tokens=max_tokens + row,
            **changes,
        )
        for row in range(count)
    ]


class _ErringDrafter(SelfDrafter):
    def drafting(self, policy: PreTrainedModel) -> Drafting:
        drafting: Any = super().drafting(policy)
        sound = drafting.propose
        noise = torch.randn(320, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.2
        drafting.propose = lambda last: sound(last) + noise
        return drafting


def error(name: str) -> float:
    return 1e-3 if name.startswith("qwen3.5") else 1e-9  # the library keeps linear attention in float32


@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", list(MODELS))
def test_greedy_output_and_log_probs_are_those_without_drafts(name: str, own: bool, drafts: int) -> None:
    model = policy(name)
    plain = engine(model).generate(requests(temperature=0.0))
    drafted = engine(model, draft_tokens=drafts, drafter=SelfDrafter() if own else None).generate(
        requests(temperature=0.0)
    )
    for one, other in zip(plain, drafted, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=error(name), rtol=0)
        assert len(one.tokens) == one.target_forwards
        assert one.drafted == one.accepted == ()


@pytest.mark.parametrize("name", list(MODELS))
def test_sampled_log_probs_are_a_full_forward_pass_s(name: str) -> None:
    model = policy(name)
    asked = requests(temperature=0.7, top_k=20)
    for request, sample in zip(asked, engine(model, draft_tokens=3).generate(asked), strict=True):
        with torch.no_grad():
            row = torch.tensor([(*request.prompt, *sample.tokens)])
            logits = model(input_ids=row, use_cache=False).logits[0, len(request.prompt) - 1 : -1]
        expected = (logits / 0.7).log_softmax(-1)[torch.arange(len(sample.tokens)), list(sample.tokens)]
        np.testing.assert_allclose(sample.log_probs, expected.numpy(), atol=error(name), rtol=0)


@pytest.mark.parametrize("drafts", [1, 3, 5])
@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gemma4"])
def test_an_equal_drafter_is_always_accepted_and_saves_what_it_should(name: str, drafts: int) -> None:
    served = engine(policy(name), draft_tokens=drafts, drafter=SelfDrafter())
    for request in requests(4, max_tokens=17):
        before = served.target_forwards
        sample = served.generate([request])[0]
        assert sample.accepted == sample.drafted
        expected = 1 + math.ceil((len(sample.tokens) - 1) / (drafts + 1))
        assert sample.target_forwards == served.target_forwards - before == expected
        assert expected < len(sample.tokens)


def test_three_tokens_have_their_joint_distribution_in_rows_held_up_by_others() -> None:
    """A chi-square test at one in ten million; the drafter errs, so that rounds end anywhere."""
    model, prompt, drafts = policy(std=0.15), (1, 2, 3), 2
    with torch.no_grad():
        law: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(3):
            longer = {}
            for tokens, share in law.items():
                logits = model(input_ids=torch.tensor([(*prompt, *tokens)])).logits[0, -1]
                kept = logits.topk(3)
                for token, one in zip(kept.indices.tolist(), kept.values.softmax(-1).tolist(), strict=True):
                    longer[*tokens, token] = share * one
            law = longer
    count = 4000
    asked = [SamplingRequest(prompt=prompt, seed=seed, max_tokens=4, top_k=3) for seed in range(count)]
    samples = engine(model, draft_tokens=drafts, draft_rows=8, drafter=_ErringDrafter()).generate(asked)
    for place in range(drafts):
        assert 0.2 < sum(one.accepted[place] for one in samples) / sum(one.drafted[place] for one in samples) < 0.9
    seen = Counter(sample.tokens[:3] for sample in samples)
    assert set(seen) <= set(law)
    assert len(law) == 27
    statistic = sum((seen[tokens] - share * count) ** 2 / (share * count) for tokens, share in law.items())
    assert statistic < 82.0  # chi-square, 26 degrees of freedom, p = 1e-7


@pytest.mark.parametrize("name", list(MODELS))
def test_the_drafter_is_told_each_position_once_with_the_target_s_hidden_state(name: str) -> None:
    """Also where a recurrent state was put back, so that tokens were read again."""
    model = policy(name)
    told: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Overhearing(_ErringDrafter):
        def drafting(self, policy: PreTrainedModel) -> Drafting:
            drafting: Any = super().drafting(policy)
            settle = drafting.settle

            def overheard(tokens: torch.Tensor, hidden: torch.Tensor, cache: Cache) -> None:
                told.append((tokens, hidden))
                settle(tokens, hidden, cache)

            drafting.settle = overheard
            return drafting

    asked = [SamplingRequest(prompt=(1, 2, 3), seed=seed, max_tokens=20, temperature=0.3) for seed in range(2)]
    samples = engine(model, draft_tokens=3, drafter=Overhearing()).generate(asked)
    assert any(0 < sum(one.accepted) < sum(one.drafted) for one in samples)
    tokens = torch.cat([told[0][0], *(later[:, 1:] for later, _ in told[1:])], dim=1)
    hidden = torch.cat([one for _, one in told], dim=1)
    assert tokens.shape[1] == hidden.shape[1] + 1
    for (before, _), (after, _) in itertools.pairwise(told):
        assert torch.equal(before[:, -1], after[:, 0])
    for row, sample in enumerate(samples):
        assert tuple(tokens[row].tolist()) == (1, 2, 3, *sample.tokens)[: tokens.shape[1]]
    with torch.no_grad():
        expected = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    torch.testing.assert_close(hidden, expected, atol=1e-2 if name.startswith("qwen3.5") else 1e-9, rtol=0)


def test_a_row_that_ends_holds_up_nobody() -> None:
    class WrongInTheFirstRow(SelfDrafter):
        def drafting(self, policy: PreTrainedModel) -> Drafting:
            drafting: Any = super().drafting(policy)
            sound = drafting.propose
            wrong = torch.zeros(2, 320, dtype=torch.float64)
            wrong[0] = 1e3 * torch.arange(320)
            drafting.propose = lambda last: sound(last) + wrong
            return drafting

    asked = [SamplingRequest(prompt=(1, 2), seed=0, max_tokens=count, temperature=0.0) for count in (2, 9)]
    first, second = engine(policy(), draft_tokens=3, drafter=WrongInTheFirstRow()).generate(asked)
    assert (first.drafted, first.accepted, first.target_forwards) == ((1, 0, 0), (0, 0, 0), 2)
    assert (second.drafted, second.accepted, second.target_forwards) == ((2, 2, 2), (2, 2, 2), 3)


def test_a_sample_ends_at_its_end_token_or_budget_wherever_a_round_reaches_it() -> None:
    model = policy()
    plain = engine(model).generate(requests(temperature=0.0))
    for stop in {sample.tokens[place] for sample in plain for place in (0, 1, 2, 5)}:
        asked = requests(temperature=0.0)
        expected = engine(model, eos_id=stop).generate(asked)
        for drafter in (None, SelfDrafter()):
            found = engine(model, eos_id=stop, draft_tokens=4, drafter=drafter).generate(asked)
            assert [one.tokens for one in found] == [one.tokens for one in expected]
            assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]


def test_budgets_of_one_token_and_others_within_a_batch() -> None:
    asked = [
        SamplingRequest(prompt=(1, 2), seed=row, max_tokens=1 + row, temperature=0.0, draft_tokens=3)
        for row in range(5)
    ]
    samples = engine(policy()).generate(asked)
    assert [len(sample.tokens) for sample in samples] == [1, 2, 3, 4, 5]
    assert all(sample.finish_reason is FinishReason.LENGTH for sample in samples)
    assert samples[0].drafted == (*samples[1].drafted[1:], 0) == (0, 0, 0)
    assert engine(policy(), draft_tokens=3).generate([]) == []


def test_drafts_are_counted_where_a_row_was_alive_and_acceptance_is_its_own() -> None:
    for name in ("qwen3", "gemma4"):
        for sample in engine(policy(name, std=0.1), draft_tokens=4).generate(requests(8, max_tokens=20)):
            assert len(sample.drafted) == len(sample.accepted) == 4
            assert all(0 <= yes <= made for yes, made in zip(sample.accepted, sample.drafted, strict=True))
            assert list(sample.drafted) == sorted(sample.drafted, reverse=True)
            assert list(sample.accepted) == sorted(sample.accepted, reverse=True)
            assert sample.drafted[0] < sample.target_forwards <= len(sample.tokens)


def test_the_same_batch_draws_the_same_again_and_other_seeds_others() -> None:
    served = engine(policy(), draft_tokens=3)
    asked = requests(temperature=2.0)
    assert served.generate(asked) == served.generate(asked)
    other = served.generate([replace(request, seed=request.seed + 1000) for request in asked])
    assert all(a.tokens != b.tokens for a, b in zip(served.generate(asked), other, strict=True))


def test_requests_with_and_without_drafts_go_together_and_a_request_overrides_the_engine() -> None:
    served = engine(policy(), draft_tokens=2)
    asked = [replace(request, draft_tokens=[None, 0, 3][index % 3]) for index, request in enumerate(requests())]
    assert [len(sample.drafted) for sample in served.generate(asked)] == [2, 0, 3, 2, 0, 3]


def test_drafts_without_a_drafter_are_refused() -> None:
    bare = policy(drafter=False)
    with pytest.raises(ValueError, match="draft_tokens is 2 but the model has no drafter"):
        engine(bare, draft_tokens=2)
    with pytest.raises(ValueError, match="request 0 has draft_tokens 1"):
        engine(bare).generate(requests(1, draft_tokens=1))
    with pytest.raises(ValueError, match="request 0 has draft_tokens -1"):
        engine(policy()).generate(requests(1, draft_tokens=-1))


def test_a_sample_travels_whole() -> None:
    sample = engine(policy(), draft_tokens=2).generate(requests(1))[0]
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(sample).items()}
    assert isinstance(sample, Sample)
    assert decode_sample(fields) == sample


@pytest.mark.parametrize("name", list(MODELS))
def test_a_rewound_cache_gives_what_one_that_never_saw_the_rest_gives(name: str) -> None:
    """Kept, rejected and read-again tokens in turn, over lengths on both sides of the sliding window."""
    model = policy(name)
    tokens = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(0))
    cache = RewindableCache(roomy_cache(model.config, capacity=4))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        while cache.length < 20:
            start, processed = cache.length, int(torch.randint(1, 5, (), generator=generator))
            kept = int(torch.randint(0, processed + 1, (), generator=generator))
            ids = tokens[:, start : start + processed].clone()
            ids[:, kept:] += 1  # what is rejected was another token
            cache.remember()
            positions = torch.arange(start, start + processed).expand_as(ids)
            model.model(input_ids=ids, position_ids=positions, past_key_values=cache.cache, use_cache=True)
            assert cache.keep(processed=processed, kept=kept) - start in (kept, 0)
        end = cache.length
        positions = torch.full((2, 1), end)
        found = model.model(
            input_ids=tokens[:, end : end + 1], position_ids=positions, past_key_values=cache.cache, use_cache=True
        ).last_hidden_state
        expected = model.model(input_ids=tokens[:, : end + 1], use_cache=False).last_hidden_state[:, -1:]
    torch.testing.assert_close(found, expected, atol=1e-3 if name.startswith("qwen3.5") else 1e-9, rtol=0)
