from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.rollout.sampling import choose_tokens, draw, filter_top_k, filter_top_p, sampled_distribution


def exact_distribution(logits: np.ndarray, *, temperature: float, top_p: float, top_k: int) -> np.ndarray:
    """Temperature, then the k likeliest, then the smallest set with mass p of what is left; token by token."""
    weights = np.exp(logits / temperature - (logits / temperature).max())
    order = sorted(range(len(logits)), key=lambda token: (-weights[token], token))
    kept = order[:top_k] if top_k else order
    total, mass, nucleus = weights[kept].sum(), 0.0, []
    for token in kept:
        nucleus.append(token)
        mass += weights[token] / total
        if mass >= top_p:
            break
    result = np.zeros(len(logits))
    result[nucleus] = weights[nucleus] / weights[nucleus].sum()
    return result


@given(
    vocabulary=st.integers(1, 6),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 5]),
    seed=st.integers(0, 2**31),
)
def test_the_distribution_is_exactly_the_filtered_softmax(
    vocabulary: int, temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    """By inversion: the share of evenly spread uniform numbers that give a token is its probability."""
    logits = np.random.default_rng(seed).normal(size=vocabulary) * 2
    count = 2000
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, log_probs = choose_tokens(
        torch.tensor(logits).expand(count, -1),
        uniforms,
        temperature=torch.full((count,), temperature, dtype=torch.float64),
        top_p=torch.full((count,), top_p, dtype=torch.float64),
        top_k=torch.full((count,), top_k),
    )
    shares = np.bincount(tokens.numpy(), minlength=vocabulary) / count
    expected = exact_distribution(logits, temperature=temperature, top_p=top_p, top_k=top_k)
    assert np.abs(shares - expected).max() <= 1 / count + 1e-12
    # The log-prob told is of the policy at this temperature, whatever was filtered.
    scaled = logits / temperature
    policy = scaled - (np.log(np.exp(scaled - scaled.max()).sum()) + scaled.max())
    np.testing.assert_allclose(log_probs.numpy(), policy[tokens.numpy()], atol=1e-12)


def test_rows_of_one_batch_may_ask_for_different_things() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]]).repeat(4, 1)
    tokens, log_probs = choose_tokens(
        logits,
        torch.full((4,), 0.999999, dtype=torch.float64),
        temperature=torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        top_p=torch.tensor([1.0, 1.0, 0.3, 1.0], dtype=torch.float64),
        top_k=torch.tensor([0, 0, 0, 2]),
    )
    # Greedy; unfiltered, where the last third of the mass is token 2; nucleus of token 1 alone; tokens 1 and 2.
    assert tokens.tolist() == [1, 2, 1, 2]
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


def test_top_k_keeps_k_tokens_of_equal_probability() -> None:
    kept = filter_top_k(torch.full((1, 5), 0.2, dtype=torch.float64), torch.tensor([2]))
    assert (kept > 0).tolist() == [[True, True, False, False, False]]


def test_the_likeliest_token_survives_any_nucleus() -> None:
    kept = filter_top_p(torch.tensor([[0.1, 0.6, 0.3]], dtype=torch.float64), torch.tensor([1e-9], dtype=torch.float64))
    assert (kept > 0).tolist() == [[False, True, False]]


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
def test_a_token_without_mass_is_never_drawn(uniform: float) -> None:
    probabilities = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    token = draw(probabilities, torch.tensor([uniform], dtype=torch.float64)).item()
    assert token == (1 if uniform == 0.0 else 3)


@given(
    banned=st.sets(st.integers(0, 5), min_size=1, max_size=5),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 2**31),
)
def test_a_ban_leaves_the_filtered_softmax_of_the_others(banned: set[int], top_p: float, top_k: int, seed: int) -> None:
    """As if the banned tokens were not in the vocabulary: they count neither for k nor for the mass p."""
    logits = np.random.default_rng(seed).normal(size=6) * 2
    others = [token for token in range(6) if token not in banned]
    expected = np.zeros(6)
    expected[others] = exact_distribution(logits[others], temperature=0.7, top_p=top_p, top_k=top_k)
    count = 2000
    rows = torch.tensor(logits).expand(count, 6)
    settings = {
        "temperature": torch.full((count,), 0.7, dtype=torch.float64),
        "top_p": torch.full((count,), top_p, dtype=torch.float64),
        "top_k": torch.full((count,), top_k),
        "banned": torch.tensor(sorted(banned)),
    }
    tokens, log_probs = choose_tokens(rows, (torch.arange(count, dtype=torch.float64) + 0.5) / count, **settings)
    np.testing.assert_allclose(torch.bincount(tokens, minlength=6).numpy() / count, expected, atol=1.5 / count)
    assert not set(tokens.tolist()) & banned
    # Of the policy, which knows of no ban.
    np.testing.assert_allclose(log_probs, torch.tensor(logits / 0.7).log_softmax(-1)[tokens], atol=1e-12)
    _, drawn_from = sampled_distribution(
        rows[:1], **{name: value[:1] for name, value in settings.items()} | {"banned": settings["banned"]}
    )
    np.testing.assert_allclose(drawn_from[0], expected, atol=1e-12)
    greedy, _ = choose_tokens(
        rows[:1],
        torch.zeros(1, dtype=torch.float64),
        temperature=torch.zeros(1, dtype=torch.float64),
        top_p=torch.ones(1),
        top_k=torch.zeros(1, dtype=torch.int64),
        banned=settings["banned"],
    )
    assert int(greedy) == others[int(np.argmax(logits[others]))]
