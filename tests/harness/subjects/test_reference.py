from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.cases.functions import FUNCTIONS, HELD_BY_A_LAW
from harness.errors import RequestError
from harness.matrix.cell import Cell
from harness.subjects.protocol import Capability, GenerationRequest, Layout, TrainSample
from harness.subjects.reference import ReferenceSubject
from harness.subjects.registry import build_subject, capabilities, validate_settings

SAMPLES = [
    TrainSample(prompt=(5, 6), response=(7, 8, 9), score=1.0, group=0),
    TrainSample(prompt=(5, 6), response=(10,), score=0.0, group=0),
]
WHOLE = [[0, 1]]


@pytest.fixture(scope="module")
def subject(tiny_cell: Cell) -> Iterator[ReferenceSubject]:
    subject = ReferenceSubject(tiny_cell)
    yield subject
    subject.close()


def test_every_function_it_names_has_an_oracle(subject: ReferenceSubject) -> None:
    assert set(subject.function_names()) == {*FUNCTIONS, *HELD_BY_A_LAW}


def test_it_offers_what_the_registry_says(subject: ReferenceSubject) -> None:
    assert subject.capabilities() == capabilities("reference") == frozenset(Capability)


def test_gradients_without_a_step_leave_the_parameters_alone(subject: ReferenceSubject) -> None:
    first = subject.update(SAMPLES, splits=WHOLE, apply=False)
    again = subject.update(SAMPLES, splits=WHOLE, apply=False)
    assert first.parameter_change == 0.0
    assert any(np.abs(gradient).max() > 0 for gradient in first.gradients.values())
    assert all((gradient == again.gradients[name]).all() for name, gradient in first.gradients.items())


def test_a_step_moves_them_and_reset_puts_them_back(subject: ReferenceSubject) -> None:
    before = subject.update(SAMPLES, splits=WHOLE, apply=False)
    stepped = subject.update(SAMPLES, splits=WHOLE, apply=True)
    assert stepped.parameter_change > 0
    assert stepped.metrics["response_tokens"] == 4
    subject.reset()
    after = subject.update(SAMPLES, splits=WHOLE, apply=False)
    assert all((gradient == after.gradients[name]).all() for name, gradient in before.gradients.items())


def test_settings_of_the_algorithm_can_be_overridden_for_one_update(subject: ReferenceSubject) -> None:
    usual = subject.update(SAMPLES, splits=WHOLE, apply=False)
    other = subject.update(SAMPLES, splits=WHOLE, apply=False, algorithm={"aggregation": "seq_mean_token_sum"})
    assert other.loss != usual.loss


def test_log_probs_come_back_in_the_order_of_the_rows(subject: ReferenceSubject) -> None:
    rows = [((1, 2), (3,)), ((4,), (5, 6)), ((7,), ())]
    plain = subject.log_probs(rows, layout=Layout(), temperature=1.0)
    turned = subject.log_probs(rows, layout=Layout(order=(2, 0, 1), rows_per_batch=2), temperature=1.0)
    assert [len(row) for row in plain] == [1, 2, 0]
    for one, other in zip(plain, turned, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_generation_says_how_it_ended(subject: ReferenceSubject) -> None:
    request = GenerationRequest(prompt=(1, 2, 3), seed=4, max_tokens=2)
    (sample,) = subject.generate([request])
    assert len(sample.tokens) == len(sample.log_probs) <= 2
    assert sample.finish_reason in {"stop", "length"}


def test_a_training_tells_each_step_and_repeats_itself(subject: ReferenceSubject) -> None:
    told: list[int] = []
    runs = [subject.train(seed=3, steps=2, on_step=lambda step, metrics: told.append(step)) for _ in range(2)]
    assert told == [0, 1, 0, 1]
    assert runs[0].fingerprint == runs[1].fingerprint
    assert runs[0].fingerprint_before == runs[1].fingerprint_before
    assert runs[0].greedy_reward_before is not None
    assert runs[0].notes["threads"] == 1
    assert subject.train(seed=4, steps=1).fingerprint_before != runs[0].fingerprint_before


def test_a_wrong_setting_is_told_in_a_sentence_before_anything_is_built(tiny_cell: Cell) -> None:
    settings: dict[str, Any] = {**tiny_cell.settings, "algorithm": {"advantage": "grpo", "clip_lo": 0.1}}
    wrong = replace(tiny_cell, settings=settings)
    with pytest.raises(RequestError, match=r'cell cpu/qwen3/grpo/.*: unknown key "algorithm.clip_lo".*"clip_low"'):
        validate_settings(wrong)
    with pytest.raises(RequestError, match="clip_low"):
        build_subject(wrong)


def test_an_unknown_subject_is_named_with_the_nearest(tiny_cell: Cell) -> None:
    with pytest.raises(RequestError, match='no subject "referense"; did you mean "reference"'):
        build_subject(replace(tiny_cell, subject="referense"))


def test_a_mutant_needs_a_file_to_count_its_hits_in(tiny_cell: Cell) -> None:
    with pytest.raises(ValueError, match="give hits_path"):
        build_subject(tiny_cell, mutant="rollout.empty-sequence:pad-zero")


def test_the_size_full_is_never_run(tiny_cell: Cell) -> None:
    full = replace(tiny_cell, size="full")
    for asked in (validate_settings, ReferenceSubject):
        with pytest.raises(RequestError, match='size "full" is for forecasts and is never run; name its family'):
            asked(full)


def test_the_size_local_asks_for_the_folder(tiny_cell: Cell) -> None:
    settings = {**tiny_cell.settings, "model": {"architecture": "qwen3"}}
    with pytest.raises(RequestError, match=r"model\.config is empty and there is no model\.checkpoint"):
        validate_settings(replace(tiny_cell, size="local", settings=settings))
