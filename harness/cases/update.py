"""The case of the update's wiring: the right tensors reach the right terms, with the right signs and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.cases import tolerances
from harness.cases.base import Case, Context, require
from harness.cases.oracles.update import MiniBatch, WholeLoss, whole_loss
from harness.matrix.cell import Cell
from harness.results.vocabulary import FailureClass
from harness.strategies import AGGREGATIONS, sample_of, splits, train_samples
from harness.subjects.protocol import Capability, Layout, TrainSample, UpdateAnswer

_ALONE = Layout(rows_per_batch=1)
_LOGARITHMS = ("old_log_probs", "reference_log_probs", "rollout_log_probs")


class UpdateMatchesOracle(Case):
    """The loss of a mini-batch, its terms, and its gradient by each token's log-prob, entropy and value.

    Each pure function may be right and the update wrong all the same: arguments swapped, a sign, a bound, a term left
    out, the score at another token, an advantage that is not whitened. So old, reference and rollout log-probs and old
    values are given, the policy's own log-probs and entropies are asked for, and everything between them and the loss
    is computed again in float64 from the formulas. Terms that an oracle can't see into (distance to a teacher, the
    drafter's loss) must enter the loss with their coefficient.

    When it fails: the message names the term or the token. A term off by a sign or by the ratio of two settings: look
    at who passes what in the update. A gradient off where the value is right: something was detached, or not.
    """

    id = "loss.update-matches-oracle"
    origin = "trl#6807"
    axes = ("model", "algorithm")
    cover = "each"
    needs = frozenset({Capability.UPDATE, Capability.LOG_PROBS})
    failure_class = FailureClass.NUMERICS_DRIFT
    other_classes = frozenset({FailureClass.NUMERICS_NAN, FailureClass.CONTRACT})

    def inputs(self, cell: Cell) -> st.SearchStrategy[dict[str, Any]]:
        fixed = cell.settings.get("algorithm", {})
        # The constant horizon is the budget of a response; a cell that leaves it unsaid has one that nobody told us.
        told = "max_tokens" in cell.settings.get("rollout", {})
        aggregations = [mode for mode in AGGREGATIONS if told or mode != "seq_mean_token_sum_norm"]
        per_token = fixed.get("advantage") in ("gae", "reinforce_pp")

        @st.composite
        def mini_batch(draw: st.DrawFn) -> dict[str, Any]:
            samples = draw(train_samples(most_rows=6, most_response=5))
            for sample in samples:
                count = len(sample["response"])
                for name in _LOGARITHMS:
                    near = st.floats(-6.5, -5.0, width=16)
                    sample[name] = draw(st.lists(near, min_size=count, max_size=count))
                unit = st.floats(-2.0, 2.0, width=16)
                sample["values"] = draw(st.lists(unit, min_size=count, max_size=count))
                sample["baseline"] = draw(st.sampled_from([0.0, 0.5]))
            kl = draw(st.sampled_from(["none", "k1", "k2", "k3"]))
            return {
                "samples": samples,
                "splits": draw(splits(len(samples))),
                "algorithm": {
                    "gamma": draw(st.sampled_from([1.0, 0.9])),
                    "lam": draw(st.sampled_from([1.0, 0.7])),
                    "whiten": draw(st.booleans()),
                    "clip_low": draw(st.sampled_from([0.2, 0.1, 0.5])),
                    "clip_high": draw(st.sampled_from([0.3, 0.15, 0.6])),
                    "kl": kl,
                    "kl_coefficient": 0.0 if kl == "none" else draw(st.sampled_from([0.1, 0.7])),
                    "kl_placement": draw(st.sampled_from(["loss", "reward"])) if per_token else "loss",
                    "value_clip": draw(st.sampled_from([0.5, 0.2, None])),
                    "value_coefficient": draw(st.sampled_from([0.5, 2.0])),
                    "entropy_coefficient": draw(st.sampled_from([0.0, 0.3])),
                    "aggregation": draw(st.sampled_from(aggregations)),
                    "empty_row": draw(st.sampled_from(["left_out", "counted"])),
                    "std_ddof": draw(st.sampled_from([0, 1])),
                    "std_eps": draw(st.sampled_from([1e-4, 1e-2])),
                    "divide_by_std": draw(st.booleans()),
                    "singleton": draw(st.sampled_from(["zero", "score"])),
                },
            }

        return mini_batch()

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        samples = [sample_of(fields) for fields in data["samples"]]
        algorithm = {**_DEFAULTS, **context.cell.settings.get("algorithm", {}), **data["algorithm"]}
        rollout = context.cell.settings.get("rollout", {})
        batch = _mini_batch(context, samples, temperature=rollout.get("temperature", 1.0))
        layers, hidden = context.subject.depth()
        longest = max(len(sample.prompt) + len(sample.response) for sample in samples)
        error = tolerances.log_prob_error(context.cell.dtype, layers=layers, hidden=hidden, length=longest)
        expected = whole_loss(batch, algorithm, horizon=rollout.get("max_tokens"), near=4 * error)
        answer = context.subject.update(samples, splits=data["splits"], apply=False, algorithm=data["algorithm"])
        if not batch.mask.any():
            require(answer.loss == 0, f"the loss of a mini-batch without a counted token is {answer.loss:.6g}, not 0")
            return
        self._require_terms(answer, expected, algorithm, context.cell.settings, error=error)
        for name, gradient in answer.token_gradients.items():
            if name in expected.gradients:
                self._require_gradient(name, gradient, expected, error=error)

    def _require_terms(
        self,
        answer: UpdateAnswer,
        expected: WholeLoss,
        algorithm: Mapping[str, Any],
        cell: Mapping[str, Any],
        *,
        error: float,
    ) -> None:
        # A term moves with each log-prob by its slope; values and scores in play are of size 4 at most.
        allowed = error * (4 + 2 * sum(np.abs(gradient).sum() for gradient in expected.gradients.values()))
        for name, value in expected.terms.items():
            require(name in answer.metrics, f"the update told no {name}", failure_class=FailureClass.CONTRACT)
            require(
                abs(answer.metrics[name] - value) <= allowed,
                f"{name} is {answer.metrics[name]:.8g}, the formula gives {value:.8g}; rounding explains {allowed:.1g}",
            )
        loss = expected.loss
        for name, coefficient in _opaque_terms(algorithm, cell).items():
            require(name in answer.metrics, f"the update told no {name}", failure_class=FailureClass.CONTRACT)
            loss += coefficient * answer.metrics[name]
            allowed += error * abs(coefficient * answer.metrics[name])
        require(
            abs(answer.loss - loss) <= allowed,
            f"the loss is {answer.loss:.8g}, its terms add up to {loss:.8g} by the formula; rounding explains "
            f"{allowed:.1g}",
        )

    def _require_gradient(self, name: str, got: np.ndarray, expected: WholeLoss, *, error: float) -> None:
        right = expected.gradients[name]
        require(
            got.shape == right.shape,
            f"the gradient by {name} has shape {got.shape}, expected {right.shape}",
            failure_class=FailureClass.CONTRACT,
        )
        allowed = 8 * error * (np.abs(right) + np.abs(right).max(initial=0.0) + 1e-3)
        wrong = ~(np.abs(got - right) <= allowed) & ~expected.undecided[name]
        if wrong.any():
            row, token = (int(index) for index in np.argwhere(wrong)[0])
            require(
                False,
                f"the loss moves with {name} of row {row}, token {token}, by {got[row, token]:.8g}; the formula gives "
                f"{right[row, token]:.8g} (advantage {expected.advantages[row, token]:.6g}); rounding explains "
                f"{allowed[row, token]:.1g}",
                failure_class=None if np.isfinite(got[row, token]) else FailureClass.NUMERICS_NAN,
            )


# What a cell leaves unsaid and the case does not draw.
_DEFAULTS: dict[str, Any] = {
    "policy_loss": "ppo_clip",
    "dual_clip": None,
    "correction": "none",
    "correction_cap": 2.0,
    "correction_floor": 0.0,
    "distillation": None,
}


def _opaque_terms(algorithm: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, float]:
    """Coefficients of the terms that only the subject can compute, by the metric that tells them."""
    terms = {}
    if algorithm["distillation"] is not None:
        terms["distillation_loss"] = algorithm["distillation"].get("coefficient", 1.0)
    drafter = cell.get("model", {}).get("drafter")
    if drafter is not None and drafter.get("loss_coefficient", 0.1) > 0:
        terms["mtp_loss"] = drafter.get("loss_coefficient", 0.1)
    return terms


def _mini_batch(context: Context, samples: Sequence[TrainSample], *, temperature: float) -> MiniBatch:
    rows = [(sample.prompt, sample.response) for sample in samples]
    longest = max(len(sample.response) for sample in samples)

    def table(values: Sequence[Any]) -> np.ndarray:
        filled = np.zeros((len(samples), longest))
        for row, numbers in enumerate(values):
            filled[row, : len(numbers)] = numbers
        return filled

    values = context.subject.values(rows)
    return MiniBatch(
        scores=np.array([sample.score for sample in samples]),
        baselines=np.array([sample.baseline for sample in samples]),
        groups=[sample.group for sample in samples],
        mask=table([sample.mask if sample.mask is not None else (1,) * len(sample.response) for sample in samples]),
        log_probs=table(context.subject.log_probs(rows, layout=_ALONE, temperature=temperature)),
        entropies=table(context.subject.entropies(rows, temperature=temperature)),
        old=table([sample.old_log_probs or () for sample in samples]),
        reference=table([sample.reference_log_probs or () for sample in samples]),
        rollout=table([sample.rollout_log_probs or () for sample in samples]),
        values=None if values is None else table(values),
        old_values=None if values is None else table([sample.values or () for sample in samples]),
    )


CASES: tuple[Case, ...] = (UpdateMatchesOracle(),)
