from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from reference_trainer.weights.apply import WeightMismatch, apply_tensors
from reference_trainer.weights.export import export_names, export_tensors


class Router(nn.Module):
    """Tied head, a persistent buffer that decides routing, an integer one, and a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("bias_correction", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def router(seed: int) -> Router:
    torch.manual_seed(seed)
    model = Router()
    model.bias_correction.normal_()
    model.steps.fill_(seed)
    return model


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in export_tensors(model)}


def assert_unchanged(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    for name, tensor in export_tensors(model):
        assert torch.equal(tensor, before[name]), name


def test_export_lists_buffers_and_both_names_of_a_tied_head_sorted():
    assert export_names(router(0)) == ("bias_correction", "embed.weight", "head.weight", "steps")


def test_apply_makes_the_models_bit_equal_and_counts_every_entry():
    trainer, rollout = router(1), router(2)
    assert apply_tensors(rollout, export_tensors(trainer)) == 4
    assert_unchanged(rollout, state(trainer))
    assert rollout.head.weight is rollout.embed.weight


def test_apply_does_not_keep_the_senders_tensors():
    trainer, rollout = router(1), router(2)
    apply_tensors(rollout, export_tensors(trainer))
    before = state(rollout)
    with torch.no_grad():
        trainer.embed.weight.zero_()
    assert_unchanged(rollout, before)


def test_a_float_update_is_cast_to_the_models_precision():
    trainer, rollout = router(1), router(2).bfloat16()
    apply_tensors(rollout, export_tensors(trainer))
    assert torch.equal(rollout.embed.weight, trainer.embed.weight.bfloat16())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda update: update.pop("steps"), "missing 'steps'"),
        (lambda update: update.pop("head.weight"), "missing 'head.weight'"),
        (lambda update: update.update({"mtp.norm": torch.zeros(1)}), "unknown 'mtp.norm'"),
        (lambda update: update.update({"bias_correction": torch.zeros(1, 3)}), r"\(1, 3\), the model has \(3,\)"),
        (lambda update: update.update({"steps": torch.tensor(1.0)}), "torch.float32, the model has torch.int64"),
        (lambda update: update.update({"head.weight": torch.zeros(7, 4)}), "which the model ties"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_whole(change, says):
    update, rollout = state(router(1)), router(2)
    before = state(rollout)
    change(update)
    with pytest.raises(WeightMismatch, match=says):
        apply_tensors(rollout, update.items())
    assert_unchanged(rollout, before)


def test_a_nan_in_a_tied_weight_is_no_broken_tie():
    update, rollout = state(router(1)), router(2)
    update["embed.weight"][0, 0] = update["head.weight"][0, 0] = float("nan")
    assert apply_tensors(rollout, update.items()) == 4


def test_a_name_given_twice_is_refused():
    update, rollout = list(state(router(1)).items()), router(2)
    with pytest.raises(WeightMismatch, match="twice"):
        apply_tensors(rollout, [*update, update[0]])


def test_a_stream_that_breaks_halfway_leaves_the_old_version():
    trainer, rollout = router(1), router(2)
    before = state(rollout)

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        stream = export_tensors(trainer)
        yield next(stream)
        yield next(stream)
        raise ConnectionError("the trainer died")

    with pytest.raises(ConnectionError):
        apply_tensors(rollout, broken())
    assert_unchanged(rollout, before)


def test_extra_state_that_is_no_tensor_is_refused_by_name():
    class Stateful(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    with pytest.raises(TypeError, match="_extra_state"):
        list(export_tensors(Stateful(1, 1)))
