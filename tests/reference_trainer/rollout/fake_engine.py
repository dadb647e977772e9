"""An engine small enough to see through, and its badly behaved relatives. Replicas import it by name."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from reference_trainer.rollout.engine import FinishReason, Sample, SamplingRequest
from reference_trainer.weights.apply import apply_tensors

REPORT, HANG, REFUSE = -1, -2, -3  # first tokens that ask for something else than a sample
SETUP_MARK = "RLG_TEST_SETUP"


def fake_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(5, 3)


class FakeEngine:
    """Samples numbers that follow from the request's seed; their log-probs from the weights."""

    def __init__(self) -> None:
        self.model = fake_model(0)
        self.weight_version = 0

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Sample]:
        return [self._sample(request) for request in requests]

    def _sample(self, request: SamplingRequest) -> Sample:
        if request.prompt[0] == HANG:
            time.sleep(60)
        if request.prompt[0] == REFUSE:
            raise ValueError(f"prompt {request.prompt} can't be decoded")
        if request.prompt[0] == REPORT:
            tokens = [os.getpid(), torch.get_num_threads(), int(os.environ.get(SETUP_MARK, "0"))]
        else:
            generator = torch.Generator().manual_seed(request.seed)
            tokens = torch.randint(0, 100, (request.max_tokens,), generator=generator).tolist()
        score = float(sum(parameter.detach().double().sum() for parameter in self.model.parameters()))
        return Sample(
            tokens=tuple(tokens),
            log_probs=tuple(score / (1 + token) for token in tokens),
            finish_reason=FinishReason.LENGTH,
            weight_version=self.weight_version,
        )

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        count = apply_tensors(self.model, tensors)
        self.weight_version = version
        return count

    def close(self) -> None:
        pass


class MiscountingEngine(FakeEngine):
    """Its second replica applies one tensor less than it was sent, or so it says."""

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        return super().update_weights(tensors, version=version) - is_second()


class HalfRefusingEngine(FakeEngine):
    """Its second replica takes no weights."""

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        if is_second():
            raise ValueError("no weights, thank you")
        return super().update_weights(tensors, version=version)


class LazyEngine(FakeEngine):
    """Its second replica never reads the weights it is sent."""

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> int:
        if is_second():
            time.sleep(60)
        return super().update_weights(tensors, version=version)


def is_second() -> bool:
    return multiprocessing.current_process().name == "rollout-replica-1"


def engine_that_can_not_be_built() -> FakeEngine:
    raise FileNotFoundError("no weights at /nowhere")


def engine_that_kills_its_process() -> FakeEngine:
    if is_second():
        os._exit(3)
    return FakeEngine()


def engine_that_never_comes() -> FakeEngine:
    if is_second():
        time.sleep(60)
    return FakeEngine()


def mark_setup() -> None:
    os.environ[SETUP_MARK] = str(1 + int(os.environ.get(SETUP_MARK, "0")))
