"""Cases of the trainer's mathematics: every pure function against its oracle, every mini-batch against its splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from harness.cases import tolerances
from harness.cases.base import Case, Context, require, require_finite
from harness.cases.functions import FUNCTIONS, HELD_BY_A_LAW
from harness.cases.functions.base import Quantity
from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.strategies import AGGREGATIONS, GARBAGE, sample_of, splits, train_samples
from harness.subjects.protocol import Capability, Subject

_INTEGERS = ("mask", "tokens", "groups", "lengths")


class SplitInvariant(Case):
    """Loss, metrics and gradients do not depend on how a mini-batch is split into micro-batches.

    In every aggregation mode, with and without KL and entropy terms, for masks with holes, empty responses and
    micro-batches without a counted token; a mini-batch without any has a finite loss. The KL estimator `abs` is left
    out: at its kink, where policy and reference agree, rounding alone decides the gradient's sign.

    When it fails: a loss or gradient off by the ratio of row or token counts was divided by the micro-batch's count
    where the mini-batch's was due. Only metrics off: they were averaged over micro-batches of unequal size. NaN: a
    count of 0 was divided by.
    """

    id = "loss.split-invariant"
    origin = "verl#6957, verl#7225, verl#6836, verl#6464"
    axes = ("model", "algorithm")
    cover = "each"
    needs = frozenset({Capability.UPDATE})
    failure_class = FailureClass.NUMERICS_DRIFT
    other_classes = frozenset({FailureClass.NUMERICS_NAN, FailureClass.CONTRACT})

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        @st.composite
        def mini_batch(draw: st.DrawFn) -> dict[str, Any]:
            samples = draw(train_samples(most_rows=6, most_response=6))
            kl = draw(st.sampled_from([None, "k1", "k2", "k3"]))
            return {
                "samples": samples,
                "splits": draw(splits(len(samples))),
                "algorithm": {
                    "aggregation": draw(st.sampled_from(AGGREGATIONS)),
                    "empty_row": draw(st.sampled_from(["left_out", "counted"])),
                    "entropy_coefficient": draw(st.sampled_from([0.0, 0.1])),
                    **({"kl": kl, "kl_coefficient": 0.1} if kl else {}),
                },
            }

        return mini_batch()

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        samples = [sample_of(fields) for fields in data["samples"]]
        whole, parts = (
            context.subject.update(samples, splits=cut, apply=False, algorithm=data["algorithm"])
            for cut in ([list(range(len(samples)))], data["splits"])
        )
        for label, answer in (("one micro-batch", whole), (f"micro-batches {data['splits']}", parts)):
            require_finite(answer.loss, f"the loss of {label}")
            for name, value in answer.metrics.items():
                require_finite(value, f"{name} of {label}")
        layers, hidden = context.subject.depth()
        longest = max(len(sample.prompt) + len(sample.response) for sample in samples)
        size = {"layers": layers, "hidden": hidden, "length": longest}
        error = tolerances.log_prob_error(context.cell.dtype, **size)
        require(
            set(whole.metrics) == set(parts.metrics),
            f"metrics {sorted(set(whole.metrics) ^ set(parts.metrics))} are told by one split and not by the other",
            failure_class=FailureClass.CONTRACT,
        )
        for name, expected, got in [
            ("loss", whole.loss, parts.loss),
            *((name, value, parts.metrics[name]) for name, value in whole.metrics.items()),
        ]:
            allowed = error * (1 + abs(expected))
            require(
                abs(got - expected) <= allowed,
                f"{name} is {expected:.8g} in one micro-batch and {got:.8g} in {data['splits']}; "
                f"rounding explains {allowed:.1g}",
            )
        _require_equal_gradients(whole.gradients, parts.gradients, dtype=context.cell.dtype, size=size)


def _require_equal_gradients(
    whole: Mapping[str, np.ndarray], parts: Mapping[str, np.ndarray], *, dtype: str, size: Mapping[str, int]
) -> None:
    largest = max((float(np.abs(gradient).max(initial=0.0)) for gradient in whole.values()), default=0.0)
    error = tolerances.gradient_error(dtype, **size, largest_gradient=largest)
    require(whole.keys() == parts.keys(), "two splits give gradients of different parameters")
    for name, expected in whole.items():
        got = parts[name]
        require(
            bool(np.isfinite(got).all() and np.isfinite(expected).all()),
            f"the gradient of {name} is not finite",
            failure_class=FailureClass.NUMERICS_NAN,
        )
        away = float(np.abs(got - expected).max(initial=0.0))
        require(
            away <= error,
            f"the gradient of {name} moves by {away:.2g} with the split (its largest element is "
            f"{np.abs(expected).max():.2g}); rounding explains {error:.1g}",
        )


class MatchesOracle(Case):
    """Every pure function equals a float64 oracle written from the paper's formula, in value and in gradient.

    Inputs have from no rows up, masks with holes, anything at all where masked, and ratios that overflow, in every
    floating type. When it fails: the message names the function, the element, both numbers and how much rounding could
    explain. A factor near 1 points to a denominator, a wrong sign to a swapped argument, NaN to a masked cell that
    was multiplied instead of selected. The oracles are in `harness/cases/oracles/`, the bounds in
    `harness/cases/functions/`.
    """

    id = "loss.matches-oracle"
    origin = "trl#6807"
    axes = ()
    needs = frozenset({Capability.FUNCTIONS})
    failure_class = FailureClass.NUMERICS_DRIFT
    other_classes = frozenset({FailureClass.NUMERICS_NAN, FailureClass.CONTRACT})
    examples = 50 * len(FUNCTIONS)  # drawn unevenly: the rarest is judged about thirty times
    seconds = 120.0

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        @st.composite
        def call(draw: st.DrawFn) -> dict[str, Any]:
            name = draw(st.sampled_from(sorted(FUNCTIONS)))
            dtype = draw(st.sampled_from(["float32", *tolerances.DTYPES]))
            drawn = draw(FUNCTIONS[name].inputs)
            garbage = {"garbage": draw(st.sampled_from(GARBAGE))} if "mask" in drawn["inputs"] else {}
            return {"function": name, "dtype": dtype, **garbage, **drawn}

        return call()

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        named = context.subject.function_names()
        require(
            set(named) <= {*FUNCTIONS, *HELD_BY_A_LAW},
            f"no oracle in harness/cases/functions/ holds {sorted(set(named) - {*FUNCTIONS, *HELD_BY_A_LAW})} to a "
            "formula",
            failure_class=FailureClass.CONTRACT,
        )
        assume(data["function"] in named)
        require_matches_oracle(context.subject, data)


def require_matches_oracle(subject: Subject, data: Mapping[str, Any]) -> None:
    """Require that one call, `function` with its `dtype`, `shape`, `settings` and `inputs`, agrees with its oracle."""
    name, dtype, settings = data["function"], data["dtype"], data["settings"]
    function = FUNCTIONS[name]
    arrays = _arrays(data)
    exact = {key: array.astype(np.float64) for key, array in arrays.items()}
    with np.errstate(all="ignore"):  # what is masked may be anything
        expected = function.expect(
            exact,
            settings,
            tolerances.machine_epsilon(dtype if function.stores_half else tolerances.working_dtype(dtype)),
        )
    answer = subject.function(
        name, arrays, settings={**settings, "dtype": dtype}, gradients_of=tuple(expected.gradients)
    )
    where = f"{name} in {dtype}"
    for output, quantity in expected.outputs.items():
        require(output in answer.outputs, f"{where} returned no {output}")
        _require_close(f"{where}: {output}", answer.outputs[output], quantity, tolerances.working_dtype(dtype))
    for source, quantity in expected.gradients.items():
        # A gradient comes back in the type of its input, rounded once more.
        rounded = tolerances.machine_epsilon(dtype) * np.abs(quantity.value)
        _require_close(
            f"{where}: gradient by {source}",
            answer.gradients[source],
            Quantity(value=quantity.value, error=quantity.error + rounded),
            dtype,
        )


def _arrays(data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inputs as arrays of the drawn type, with garbage wherever the mask is 0."""
    inputs = data["inputs"]
    several = isinstance(data["shape"], Mapping)
    shapes = {name: tuple(data["shape"][name] if several else data["shape"]) for name in inputs}
    counted = np.array(inputs["mask"], dtype=np.int64).reshape(shapes["mask"]) if "mask" in inputs else None
    arrays = {}
    for name, values in inputs.items():
        if name in _INTEGERS:
            arrays[name] = np.array(values, dtype=np.int64).reshape(shapes[name][:2])
            continue
        array = np.array(values, dtype=object).astype(np.float64).reshape(shapes[name])
        if counted is not None:
            array = np.where(counted > 0, array, float(data["garbage"]))
        arrays[name] = tolerances.rounded_to(array, data["dtype"])
    return arrays


def _require_close(label: str, got: np.ndarray, quantity: Quantity, dtype: str) -> None:
    value, error = np.asarray(quantity.value), np.asarray(quantity.error)
    require(
        got.shape == value.shape,
        f"{label} has shape {got.shape}, expected {value.shape}",
        failure_class=FailureClass.CONTRACT,
    )
    largest = tolerances.largest(dtype)
    with np.errstate(all="ignore"):
        away = np.abs(np.clip(got, -largest, largest) - np.clip(value, -largest, largest))
    wrong = ~(away <= error + tolerances.smallest_normal(dtype))
    if not wrong.any():
        return
    at = tuple(int(index) for index in np.argwhere(wrong)[0])
    finite = bool(np.isfinite(got[at]))
    require(
        False,
        f"{label}{list(at) if at else ''} is {got[at]:.9g}, the formula gives {value[at]:.9g}; "
        f"rounding explains {error[at]:.2g}",
        failure_class=None if finite else FailureClass.NUMERICS_NAN,
    )


CASES: tuple[Case, ...] = (SplitInvariant(), MatchesOracle())
