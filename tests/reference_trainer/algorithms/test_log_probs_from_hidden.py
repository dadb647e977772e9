from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
import torch
from torch.autograd import gradcheck

from reference_trainer.algorithms.chunks import in_recomputed_chunks
from reference_trainer.algorithms.fused_logprobs import fused_log_probs
from reference_trainer.algorithms.logprobs import log_probs_from_hidden
from reference_trainer.config import LogProbVariant
from reference_trainer.live_bytes import LiveBytes, peak_bytes

VARIANTS: tuple[LogProbVariant, ...] = get_args(LogProbVariant)


def head(
    *, positions: int, vocabulary: int, hidden: int = 8, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(positions * 1000 + vocabulary)
    states = torch.randn(positions, hidden, generator=generator, dtype=torch.float64).mul(scale).to(dtype)
    weight = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(vocabulary, (positions,), generator=generator)
    return states.requires_grad_(), weight.requires_grad_(), labels


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("softcap", "temperature"), [(None, 1.0), (3.0, 0.7)])
def test_every_variant_equals_the_definition_for_any_chunk(
    variant: LogProbVariant, softcap: float | None, temperature: float
) -> None:
    for positions, vocabulary in itertools.product([0, 1, 5], [1, 130]):
        hidden, weight, labels = head(positions=positions, vocabulary=vocabulary)
        logits = hidden @ weight.T
        capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        probabilities = torch.softmax(capped / temperature, -1)
        expected = probabilities.gather(-1, labels[:, None])[:, 0].log(), -(probabilities * probabilities.log()).sum(-1)
        weights = torch.linspace(-1, 2, positions, dtype=torch.float64)
        for chunk in range(1, positions + 2):
            found = log_probs_from_hidden(
                hidden, weight, labels, temperature=temperature, softcap=softcap, variant=variant, chunk=chunk
            )
            for got, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(got, wanted)
                torch.testing.assert_close(
                    torch.autograd.grad((got * weights).sum(), [hidden, weight], retain_graph=True),
                    torch.autograd.grad((wanted * weights).sum(), [hidden, weight], retain_graph=True),
                )


@pytest.mark.parametrize(("softcap", "temperature"), [(None, 1.0), (2.0, 0.7)])
@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_the_fused_gradient_is_that_of_small_differences(softcap: float | None, temperature: float, chunk: int) -> None:
    hidden, weight, labels = head(positions=5, vocabulary=7, hidden=3)

    def both(hidden: torch.Tensor, weight: torch.Tensor) -> Any:
        return fused_log_probs(
            hidden, weight, labels, temperature=temperature, softcap=softcap, chunk=chunk, with_entropy=True
        )

    assert gradcheck(both, (hidden, weight))


def test_the_fused_function_is_differentiated_once_and_says_so() -> None:
    hidden, weight, labels = head(positions=3, vocabulary=5)
    log_probs, _ = log_probs_from_hidden(hidden, weight, labels, variant="fused")
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(log_probs.sum(), hidden, create_graph=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision_is_as_far_from_float64_as_its_logits_are(variant: LogProbVariant) -> None:
    hidden, weight, labels = head(positions=96, vocabulary=300, hidden=16, dtype=torch.bfloat16)
    found = log_probs_from_hidden(hidden, weight, labels, variant=variant, chunk=7)
    gradients = torch.autograd.grad(found[0].sum(), [hidden, weight])
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = log_probs_from_hidden(*exact, labels)
    wanted_gradients = torch.autograd.grad(wanted[0].sum(), exact)
    assert [x.dtype for x in found] == [torch.float32] * 2
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), right, atol=0.06, rtol=0)  # logits of 16 are off by 1/32
    for got, right in zip(gradients, wanted_gradients, strict=True):
        assert got.dtype == torch.bfloat16
        off = (got.double() - right).norm() / right.norm()
        # The chunked form adds up fourteen parts of the head's gradient in bfloat16.
        assert off < (0.02 if variant == "chunked" else 0.006)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tensors_that_are_not_contiguous_give_the_same(variant: LogProbVariant) -> None:
    hidden, weight, labels = head(positions=5, vocabulary=9)
    strided = [x.detach().T.contiguous().T.requires_grad_() for x in (hidden, weight)]
    assert not strided[0].is_contiguous()
    found = log_probs_from_hidden(*strided, labels.repeat_interleave(2)[::2], variant=variant, chunk=2)
    wanted = log_probs_from_hidden(hidden, weight, labels)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found[0].sum(), strided), torch.autograd.grad(wanted[0].sum(), [hidden, weight])
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("trained", ["hidden", "weight"])
def test_one_side_alone_may_have_a_gradient(variant: LogProbVariant, trained: str) -> None:
    hidden, weight, labels = head(positions=5, vocabulary=9)
    sides = {"hidden": hidden, "weight": weight}
    wanted = torch.autograd.grad(log_probs_from_hidden(hidden, weight, labels)[0].sum(), sides[trained])
    frozen = {name: side if name == trained else side.detach() for name, side in sides.items()}
    found = log_probs_from_hidden(frozen["hidden"], frozen["weight"], labels, variant=variant, chunk=2)[0]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), sides[trained]), wanted)


def test_a_frozen_head_has_no_room_for_its_gradient() -> None:
    hidden, weight, labels = head(positions=4, vocabulary=2048, hidden=256, dtype=torch.float32)

    def step(weight: torch.Tensor) -> int:
        return peak_bytes(lambda: log_probs_from_hidden(hidden, weight, labels, variant="fused")[0].sum().backward())

    assert step(weight) - step(weight.detach()) >= 0.9 * 4 * 2048 * 256


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_entropy_that_was_not_asked_for_is_none(variant: LogProbVariant) -> None:
    hidden, weight, labels = head(positions=5, vocabulary=9)
    log_probs, nothing = log_probs_from_hidden(hidden, weight, labels, variant=variant, with_entropy=False)
    assert nothing is None
    torch.testing.assert_close(log_probs, log_probs_from_hidden(hidden, weight, labels)[0])
    log_probs.sum().backward()


@pytest.mark.parametrize("variant", VARIANTS)
def test_large_logits_stay_finite(variant: LogProbVariant) -> None:
    hidden, weight, labels = head(positions=5, vocabulary=9, dtype=torch.float32, scale=1e4)
    found = log_probs_from_hidden(hidden, weight, labels, variant=variant, chunk=2)
    sum(x.sum() for x in found).backward()
    assert all(x.isfinite().all() for x in (*found, hidden.grad, weight.grad))


@pytest.mark.parametrize("variant", ["chunked", "fused"])
@pytest.mark.parametrize("training", [False, True])
def test_bytes_grow_with_the_chunk_and_not_with_the_positions(variant: LogProbVariant, training: bool) -> None:
    def held(positions: int, chunk: int) -> int:
        hidden, weight, labels = head(positions=positions, vocabulary=4096, hidden=4, dtype=torch.float32)

        def run() -> None:
            with torch.set_grad_enabled(training):
                found = log_probs_from_hidden(hidden, weight, labels, variant=variant, chunk=chunk)
                if training:
                    (found[0].sum() + found[1].sum()).backward()

        return peak_bytes(run)

    row = 4 * 4096
    assert held(256, 4) - held(128, 4) < 128 * row / 20
    assert held(128, 16) - held(128, 4) >= 12 * row


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"chunk": 0}])
def test_settings_without_meaning_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        log_probs_from_hidden(*head(positions=2, vocabulary=3), **change)


def test_chunks_pass_what_is_shared_whole() -> None:
    seen = []

    def function(x: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append((len(x), len(shared)))
        return (x * shared.sum(),)

    (found,) = in_recomputed_chunks(function, (torch.arange(5.0),), (torch.ones(2),), chunk=2)
    assert found.tolist() == [0, 2, 4, 6, 8]
    assert seen == [(2, 2), (2, 2), (1, 2)]


def test_the_ledger_counts_a_storage_once_and_until_it_is_freed() -> None:
    before = torch.zeros(1000)
    with LiveBytes() as ledger:
        first = before + 1  # 4000 bytes
        view = first.view(10, 100)
        before.mul_(2)
        assert ledger.now == 4000
        del first
        assert ledger.now == 4000
        del view
        assert ledger.now == 0
        torch.zeros(500).add(1).add(1)  # two of the three are alive at a time
    assert ledger.peak == 4000
