from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.algorithms.distillation import Divergence, distillation_from_hidden, divergence, likeliest
from reference_trainer.live_bytes import peak_bytes

KINDS: tuple[Divergence, ...] = get_args(Divergence)


def formula(kind: str, p: np.ndarray, q: np.ndarray, beta: float) -> float:
    m = beta * q + (1 - beta) * p

    def kl(a: np.ndarray, b: np.ndarray) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)

    return {"reverse_kl": kl(p, q), "forward_kl": kl(q, p), "jsd": beta * kl(q, m) + (1 - beta) * kl(p, m)}[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("top_k", "tail"), [(0, "lumped"), (3, "lumped"), (3, "renormalised")])
def test_it_equals_the_formula_in_float64(kind: Divergence, top_k: int, tail: Any) -> None:
    generator = np.random.default_rng(5)
    student, teacher = generator.normal(size=(2, 4, 6)) * 2
    found = divergence(
        torch.tensor(student),
        torch.tensor(teacher),
        kind=kind,
        jsd_beta=0.3,
        top_k=top_k,
        tail=tail,
        temperature=0.7,
    )
    for row in range(4):
        p, q = (np.exp(x[row] / 0.7) / np.exp(x[row] / 0.7).sum() for x in (student, teacher))
        if top_k:
            kept = np.argsort(-teacher[row])[:top_k]
            p, q = (
                np.append(x[kept], 1 - x[kept].sum()) if tail == "lumped" else x[kept] / x[kept].sum() for x in (p, q)
            )
        np.testing.assert_allclose(found[row].item(), formula(kind, p, q, 0.3), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", ["lumped", "renormalised"])
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    top_k=st.integers(0, 6),
    half=st.booleans(),
)
def test_equal_sides_give_nothing_and_no_sides_less(
    kind: Divergence, tail: Any, seed: int, scale: float, top_k: int, half: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (torch.randn(2, 3, 6, generator=generator) * scale).to(torch.bfloat16 if half else torch.float32)
    settings: dict[str, Any] = {"kind": kind, "top_k": top_k, "tail": tail}
    same = student.clone().requires_grad_()
    nothing = divergence(same, student, **settings)
    nothing.sum().backward()
    assert nothing.abs().max() < 1e-6
    assert same.grad is not None
    assert same.grad.abs().max() < 1e-6
    assert divergence(student, teacher, **settings).min() > -1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("top_k", "tail"), [(0, "lumped"), (2, "lumped"), (3, "lumped"), (2, "renormalised")])
def test_tokens_that_both_rule_out_leave_no_trace(kind: Divergence, top_k: int, tail: Any) -> None:
    student, teacher = torch.tensor([[0.5, 1.0, -1.0]]), torch.tensor([[0.1, 2.0, 1.0]])
    padding = torch.full((1, 2), -torch.inf)
    short, long = student.clone().requires_grad_(), torch.cat([student, padding], -1).requires_grad_()
    settings: dict[str, Any] = {"kind": kind, "top_k": top_k, "tail": tail}
    wanted, found = (
        divergence(short, teacher, **settings),
        divergence(long, torch.cat([teacher, padding], -1), **settings),
    )
    torch.testing.assert_close(found, wanted)
    wanted.sum().backward()
    found.sum().backward()
    assert short.grad is not None
    assert long.grad is not None
    torch.testing.assert_close(long.grad, torch.cat([short.grad, torch.zeros(1, 2)], -1))


def test_a_kl_is_infinite_where_its_second_side_alone_rules_a_token_out() -> None:
    free, bound = torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]])
    assert divergence(free, bound, kind="reverse_kl").item() == math.inf
    assert divergence(bound, free, kind="forward_kl").item() == math.inf
    assert math.isclose(divergence(bound, free, kind="reverse_kl").item(), math.log(2), rel_tol=1e-6)
    assert divergence(bound, free, kind="jsd").isfinite().all()


@given(
    logits=st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, -math.inf]), min_size=6, max_size=6), max_size=4),
    k=st.integers(1, 6),
)
def test_of_equal_tokens_those_with_lower_ids_are_kept(logits: list[list[float]], k: int) -> None:
    found = likeliest(torch.tensor(logits).reshape(-1, 6), k)
    for row, ids in zip(logits, found.tolist(), strict=True):
        assert set(ids) == set(sorted(range(6), key=lambda token: (-row[token], token))[:k])


def heads(dtype: torch.dtype = torch.float64, positions: int = 7, vocabulary: int = 11) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((positions, 4), (vocabulary, 4), (positions, 6), (vocabulary, 6))
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [0, 3])
def test_fused_equals_dense_for_any_chunk_and_the_teacher_gets_no_gradient(kind: Divergence, top_k: int) -> None:
    inputs = heads()
    settings: dict[str, Any] = {
        "kind": kind, "top_k": top_k, "softcap": 3.0, "teacher_softcap": 2.0, "temperature": 0.7,
    }  # fmt: skip
    dense = distillation_from_hidden(*inputs, **settings)
    weights = torch.linspace(-1, 2, 7, dtype=torch.float64)
    wanted = torch.autograd.grad((dense * weights).sum(), inputs, allow_unused=True)
    assert wanted[2] is None
    assert wanted[3] is None
    for chunk in range(1, 9):
        fused = distillation_from_hidden(*inputs, variant="fused", chunk=chunk, **settings)
        torch.testing.assert_close(fused, dense)
        found = torch.autograd.grad((fused * weights).sum(), inputs, allow_unused=True)
        assert found[2] is None
        assert found[3] is None
        torch.testing.assert_close(found[:2], wanted[:2])


@pytest.mark.parametrize("variant", ["dense", "fused"])
def test_no_positions_give_no_divergences(variant: Any) -> None:
    inputs = heads(positions=0)
    found = distillation_from_hidden(*inputs, variant=variant, top_k=2)
    found.sum().backward()
    assert found.shape == (0,)
    assert inputs[1].grad is not None
    assert not inputs[1].grad.any()


@pytest.mark.parametrize("top_k", [0, 8])
def test_fused_bytes_do_not_grow_with_the_positions(top_k: int) -> None:
    def held(positions: int) -> int:
        inputs = heads(torch.float32, positions=positions, vocabulary=4096)
        return peak_bytes(
            lambda: distillation_from_hidden(*inputs, variant="fused", chunk=4, top_k=top_k).sum().backward()
        )

    assert held(256) - held(128) < 128 * 4 * 4096 / 20


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.0}, {"top_k": -1}, {"jsd_beta": 1.0}, {"chunk": 0}],
    ids=lambda change: next(iter(change)),
)
def test_settings_without_meaning_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        distillation_from_hidden(*heads(), **change)


def test_another_vocabulary_is_refused() -> None:
    student, teacher = heads(), heads(vocabulary=12)
    with pytest.raises(ValueError, match="one vocabulary"):
        distillation_from_hidden(*student[:2], *teacher[2:])
