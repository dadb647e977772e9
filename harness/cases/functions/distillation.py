"""The divergence of on-policy distillation, of each kind, whole or of the teacher's likeliest tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases.functions.base import Arrays, Expect, Expected, Function, Quantity, Settings
from harness.cases.oracles import distillation as oracle
from harness.strategies import numbers, table

_KINDS = ("reverse_kl", "forward_kl", "jsd")


def _inputs(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def draw_inputs(draw: st.DrawFn) -> dict[str, Any]:
        rows, vocabulary = draw(st.integers(0, 4)), draw(st.integers(2, 7))
        scale = draw(st.sampled_from([1.0, 1.0, 30.0, 1e4]))
        element = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), numbers(1.0)).map(lambda x: x * scale)  # ties, often
        student = draw(table(rows, vocabulary, element))
        teacher = draw(st.one_of(st.just(student), *[table(rows, vocabulary, element)] * 3))
        tail = draw(st.sampled_from(["lumped", "renormalised"]))
        impossible = draw(st.none() | st.integers(0, vocabulary - 1))
        if impossible is not None:
            # A KL is infinite where its second side alone rules a token out; and nothing is left to bring back to 1
            # where the student rules out the only token kept.
            allowed: list[tuple[str, ...]] = [("student", "teacher")]
            if tail == "lumped":
                allowed += [("student",)] * (kind != "forward_kl") + [("teacher",)] * (kind != "reverse_kl")
            sides = draw(st.sampled_from(allowed))
            student = _without(student, impossible) if "student" in sides else student
            teacher = _without(teacher, impossible) if "teacher" in sides else teacher
        settings = {
            "temperature": draw(st.sampled_from([1.0, 0.25, 0.7, 1.5])),
            "jsd_beta": draw(st.sampled_from([0.5, 0.1, 0.9])),
            "top_k": draw(st.integers(0, vocabulary + 1)),
            "tail": tail,
        }
        return {"shape": [rows, vocabulary], "settings": settings, "inputs": {"student": student, "teacher": teacher}}

    return draw_inputs()


def _without(logits: list[list[Any]], token: int) -> list[list[Any]]:
    return [[*row[:token], "-inf", *row[token + 1 :]] for row in logits]


def _expect(kind: str) -> Expect:
    def expect(inputs: Arrays, settings: Settings, eps: float) -> Expected:
        student, teacher = inputs["student"], inputs["teacher"]
        value, gradient, size, gradient_size = oracle.divergence(student, teacher, kind=kind, **settings)
        largest = np.maximum(
            *(np.abs(np.where(np.isfinite(x), x, 0.0)).max(-1, initial=0.0) for x in (student, teacher))
        )
        # Every log-prob of a token or of the tail is off by this; its probability by as much times itself.
        off = 8 * eps * (student.shape[-1] + 2 + largest / settings["temperature"])
        return Expected(
            outputs={"value": Quantity(value=value, error=off * (2 + size))},
            gradients={"student": Quantity(value=gradient, error=2 * off[:, None] * gradient_size)},
        )

    return expect


FUNCTIONS = {f"distillation.{kind}": Function(inputs=_inputs(kind), expect=_expect(kind)) for kind in _KINDS}
