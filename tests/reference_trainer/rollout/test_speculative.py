"""The pure functions of speculative sampling against the papers' formulas in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reference_trainer.rollout.sampling import choose_tokens, sampled_distribution
from reference_trainer.rollout.speculative import acceptance, own_distributions, propose, residual, verify


def filters(rows: int, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> dict[str, torch.Tensor]:
    return {
        "temperature": torch.full((rows,), temperature, dtype=torch.float64),
        "top_p": torch.full((rows,), top_p, dtype=torch.float64),
        "top_k": torch.full((rows,), top_k),
    }


def distributions(*shape: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).gamma(0.5, size=shape)
    return weights / weights.sum(-1, keepdims=True)


def test_acceptance_and_residual_are_the_paper_s() -> None:
    p, q = distributions(50, 6, seed=1), distributions(50, 6, seed=2)
    drafts = np.random.default_rng(3).integers(0, 6, size=50)
    rows = np.arange(50)
    found = acceptance(torch.tensor(p), torch.tensor(q), torch.tensor(drafts))
    np.testing.assert_allclose(found.numpy(), np.minimum(1, p[rows, drafts] / q[rows, drafts]))
    excess = np.maximum(0, p - q)
    np.testing.assert_allclose(
        residual(torch.tensor(p), torch.tensor(q)).numpy(), excess / excess.sum(-1, keepdims=True)
    )


def test_equal_distributions_leave_no_residual_and_it_is_the_target_then() -> None:
    p = torch.tensor(distributions(3, 4))
    torch.testing.assert_close(residual(p, p), p)


@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_token_after_a_draft_has_the_target_s_law(seed: int, top_k: int) -> None:
    """P(x) = q(x) a(x) + Σ_y q(y) (1 - a(y)) r(x), which is p(x)."""
    logits = torch.tensor(np.log(distributions(2, 5, seed=seed)))
    _, both = sampled_distribution(logits, **filters(2, temperature=0.8, top_k=top_k))
    p, q = both[0], both[1]
    a = torch.stack([acceptance(p, q, torch.tensor(token)) for token in range(5)])
    law = q * a + (q * (1 - a)).sum() * residual(p, q)
    torch.testing.assert_close(law, p, rtol=1e-12, atol=1e-12)


def test_the_distribution_is_the_one_that_choose_tokens_draws_from() -> None:
    logits = torch.tensor(np.random.default_rng(0).normal(size=(6, 7)))
    settings = {
        "temperature": torch.tensor([0.0, 1.0, 0.5, 2.0, 1.0, 1.0], dtype=torch.float64),
        "top_p": torch.tensor([1.0, 1.0, 0.8, 0.9, 0.5, 1.0], dtype=torch.float64),
        "top_k": torch.tensor([0, 3, 0, 4, 0, 1]),
    }
    log_probs, probabilities = sampled_distribution(logits, **settings)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(6, dtype=torch.float64))
    steps = 4000
    counts = torch.zeros(6, 7, dtype=torch.float64)
    for step in range(steps):
        uniforms = torch.full((6,), (step + 0.5) / steps, dtype=torch.float64)
        tokens, told = choose_tokens(logits, uniforms, **settings)
        torch.testing.assert_close(told, log_probs.gather(-1, tokens[:, None]).squeeze(-1))
        counts[torch.arange(6), tokens] += 1
    torch.testing.assert_close(counts / steps, probabilities, atol=1 / steps, rtol=0)


def test_a_verdict_keeps_drafts_up_to_the_first_rejected_and_adds_one_token() -> None:
    vocabulary, drafts = 4, 3
    p, q = distributions(64, drafts + 1, vocabulary, seed=5), distributions(64, drafts, vocabulary, seed=6)
    rng = np.random.default_rng(7)
    tokens = np.array([[rng.choice(vocabulary, p=one) for one in row] for row in q])
    accept, choice = rng.random((64, drafts)), rng.random((64, drafts + 1))
    verdict = verify(torch.tensor(np.log(p)), *map(torch.tensor, (tokens, q, accept, choice)), **filters(64))
    own = own_distributions(torch.tensor(p), torch.tensor(q)).numpy()
    assert set(verdict.accepted.tolist()) == {0, 1, 2, 3}
    for row in range(64):
        count = 0
        while count < drafts:
            draft = tokens[row, count]
            if accept[row, count] >= min(1, p[row, count, draft] / q[row, count, draft]):
                break
            count += 1
        assert verdict.accepted[row] == count
        drawn = int(np.searchsorted(np.cumsum(own[row, count]), choice[row, count], side="right"))
        assert verdict.tokens[row, : count + 1].tolist() == [*tokens[row, :count], drawn]
        for place, token in enumerate(verdict.tokens[row, : count + 1].tolist()):
            assert verdict.log_probs[row, place].item() == pytest.approx(np.log(p[row, place, token]))
    np.testing.assert_array_equal(own[:, -1], p[:, -1])


def test_without_drafts_the_target_draws() -> None:
    logits = torch.tensor(np.random.default_rng(0).normal(size=(5, 1, 6)))
    uniforms = torch.rand(5, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(5, 0, dtype=torch.int64), torch.zeros(5, 0, 6, dtype=torch.float64), uniforms[:, :0]
    verdict = verify(logits, *none, uniforms, **filters(5))
    expected, log_probs = choose_tokens(logits[:, 0], uniforms[:, 0], **filters(5))
    assert verdict.accepted.tolist() == [0] * 5
    assert verdict.tokens[:, 0].tolist() == expected.tolist()
    torch.testing.assert_close(verdict.log_probs[:, 0], log_probs)


def test_a_greedy_draft_is_accepted_exactly_when_it_is_the_target_s_likeliest() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    for first in range(3):
        q = torch.nn.functional.one_hot(torch.tensor([[first]]), 3).double()
        for uniform in (0.0, 0.999):
            verdict = verify(
                logits[None],
                torch.tensor([[first]]),
                q,
                torch.tensor([[uniform]], dtype=torch.float64),
                torch.tensor([[uniform, uniform]], dtype=torch.float64),
                **filters(1, temperature=0.0),
            )
            assert verdict.accepted.item() == (first == 0)
            assert verdict.tokens[0, : verdict.accepted + 1].tolist() == ([0, 2] if first == 0 else [0])


def test_a_proposal_tells_the_filtered_distribution() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    token, q = propose(logits, torch.tensor([0.99], dtype=torch.float64), **filters(1, top_k=2))
    assert token.item() == 1
    torch.testing.assert_close(q[0, :2], logits[0, :2].softmax(-1))
    assert q[0, 2:].tolist() == [0.0, 0.0]
