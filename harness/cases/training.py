"""End-to-end cases: a cell trains for real, repeats itself bit for bit, and learns where it says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.cases import statistics
from harness.cases.base import Case, Context, require, require_finite
from harness.cases.tolerances import log_prob_error
from harness.matrix.cell import AXES, Cell
from harness.results.vocabulary import FailureClass
from harness.subjects.protocol import Capability, HeadSize, TrainingRun

_STEPS = 3
_WARM_START_STEPS = 20  # enough for answers of the right form, of which some are right: groups then differ
_OF_THE_MACHINE = ("_seconds", "_bytes")  # metrics that no two runs share
_SEEDS = 2**31  # a subject's seeds are below it


class Trains(Case):
    """Several real steps of rollout, reward, advantage, update and weight sync, each of which shows that it happened.

    Every metric is finite or says that it was not measured; tokens were drawn; some group's rewards differ; parameters
    moved; as many rollout workers sampled as the topology names. The weights that sampled are the ones that are
    trained: no sample is older than the mode allows, and engine and trainer agree on the log-prob of what was sampled,
    and again right after each sync, in every replica.

    When it fails on a log-prob gap: compare what the engine holds with the trainer's parameters, a tied head and
    buffers included. A gap that grows with the steps is a sync that does not happen; one in half of the samples is a
    replica that was left out. Parameters that do not move: optimizer, gradient or a learning rate of 0. A KL to the
    reference that does not grow: the reference is synced too, or is the policy itself.
    """

    id = "cell.trains"
    origin = "verl#6668"
    axes = AXES
    needs = frozenset({Capability.TRAINING})
    other_classes = frozenset({FailureClass.NUMERICS_NAN, FailureClass.NUMERICS_DRIFT})
    examples = 1
    seconds = 180.0

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        run = _train(context, seed=context.seed % _SEEDS, steps=_STEPS, warm_start_steps=_WARM_START_STEPS)
        context.notes.update(run.notes, fingerprint=run.fingerprint)
        require(len(run.steps) == _STEPS, f"{_STEPS} steps were asked for, {len(run.steps)} are told")
        require(
            run.rollout_workers == context.cell.dp,
            f"{run.rollout_workers} rollout workers sampled; topology {context.cell.topology} names {context.cell.dp}",
        )
        for step, metrics in enumerate(run.steps):
            for name, value in metrics.items():
                if value is not None:
                    require_finite(value, f"{name} of step {step}")
            self._require_real_step(context, step, {name: value or 0.0 for name, value in metrics.items()})
        require(
            any((metrics["degenerate_groups"] or 0) < (metrics["groups"] or 0) for metrics in run.steps),
            "in every group all rewards are equal: there was nothing to learn from",
        )
        require(run.fingerprint != run.fingerprint_before, f"no parameter moved in {_STEPS} steps")
        self._require_a_reference_that_stays(run)
        if Capability.HEAD_BYTES in context.subject.capabilities():
            context.metrics["log_prob_peak_bytes"] = _log_prob_bytes(context)

    def _require_a_reference_that_stays(self, run: TrainingRun) -> None:
        first, last = run.steps[0].get("kl"), run.steps[-1].get("kl")
        if first is None or last is None:
            return  # nobody asked for it
        require(
            first < last,
            f"the KL to the reference policy is {first:.3g} before the first update and {last:.3g} before the last: "
            "a policy that moves leaves its reference behind",
        )

    def _require_real_step(self, context: Context, step: int, metrics: Mapping[str, float]) -> None:
        require(metrics["response_tokens"] > 0, f"step {step} drew no tokens")
        require(metrics["updates"] > 0, f"step {step} made no update")
        if context.cell.mode == "sync":
            require(
                metrics["staleness"] == 0,
                f"step {step} trained on samples {metrics['staleness']:.0f} weight versions old; mode sync allows none",
            )
        layers, hidden = context.subject.depth()
        length = math.ceil(metrics["prompt_length"] + metrics["response_length_max"])
        error = log_prob_error(context.cell.dtype, layers=layers, hidden=hidden, length=length)
        for name, when in (("logprob_gap", "of the rollout"), ("sync_gap", "right after the weight sync")):
            context.metrics[name] = max(context.metrics.get(name) or 0.0, metrics[name])
            require(
                metrics[name] <= error,
                f"{name} {when} of step {step} is {metrics[name]:.2g}: the engine does not sample from the weights "
                f"that are trained; rounding explains {error:.1g}",
                failure_class=FailureClass.NUMERICS_DRIFT,
            )


class RepeatsBitEqual(Case):
    """Two runs from one seed on the same threads end in the same bits and tell the same metrics, times and bytes apart.

    When it fails: the first metric that differs says where. Different rewards or lengths in step 0: an unseeded draw,
    or sampling that depends on batch mates. Equal rollouts and different gradients: an operation whose order of
    summation is free (`torch.use_deterministic_algorithms`), or another number of threads.
    """

    id = "cell.repeats-bit-equal"
    origin = "verl#7037"
    axes = AXES
    cover = "each"
    needs = frozenset({Capability.TRAINING})
    failure_class = FailureClass.NUMERICS_DRIFT
    examples = 1
    seconds = 240.0

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        first, second = (
            context.subject.train(
                seed=context.seed % _SEEDS,
                steps=2,
                warm_start_steps=_STEPS,  # of which nothing has to be learnt
                on_step=lambda step, metrics: context.progress(),
            )
            for _ in range(2)
        )
        context.notes.update(first.notes, fingerprint=first.fingerprint)
        require(
            first.fingerprint_before == second.fingerprint_before,
            "the parameters of two runs from one seed differ after the warm start, before the first step",
        )
        for step, (one, other) in enumerate(zip(first.steps, second.steps, strict=True)):
            for name, value in one.items():
                if not name.endswith(_OF_THE_MACHINE):
                    require(
                        other[name] == value,
                        f"{name} of step {step} is {value!r} in one run and {other[name]!r} in the next, from one seed",
                    )
        require(
            first.fingerprint == second.fingerprint,
            f"two runs from one seed end in other bits: {first.fingerprint[:12]}… and {second.fingerprint[:12]}…",
        )


class Learns(Case):
    """Greedy reward on held-out prompts rises from before the first step to after the last, over the cell's seeds.

    The seeds, the number of steps, the confidence and the least gain stand in the suite, before any run is judged; the
    test is one-sided. Its numbers go to the record, and every step of every seed.

    When it fails: look at the step curves first. Reward that falls while the policy moves: a sign. Reward that stays
    with parameters that hardly move: learning rate, clipping, degenerate groups. One seed of several that falls: the
    bound may be fair and the luck bad; the p-value says how bad.
    """

    id = "cell.learns"
    origin = "NeMo-RL#1996"
    axes = AXES
    needs = frozenset({Capability.TRAINING})
    other_classes = frozenset({FailureClass.NUMERICS_NAN})
    examples = 1
    seconds = 900.0

    def applies(self, cell: Cell) -> str:
        return "" if cell.learn is not None else "the suite does not say that this cell must learn"

    def check(self, context: Context, data: Mapping[str, Any]) -> None:
        learn = context.cell.learn
        assert learn is not None, "the case does not apply"
        runs = [_train(context, seed=seed, steps=learn["steps"]) for seed in learn["seeds"]]
        before, after = (
            [_reward(run.greedy_reward_before) for run in runs],
            [_reward(run.greedy_reward_after) for run in runs],
        )
        gains = [last - first for first, last in zip(before, after, strict=True)]
        test = statistics.gain_test(gains, min_gain=learn["min_gain"], alpha=round(1 - learn["confidence"], 12))
        context.metrics.update(mean_gain=test.mean_gain, gain_lower_bound=test.lower_bound, p_value=test.p_value)
        context.notes.update(runs[0].notes)
        context.notes["learning"] = {
            "seeds": list(learn["seeds"]),
            "steps": learn["steps"],
            "before": before,
            "after": after,
            "gains": gains,
            "fingerprints": [run.fingerprint for run in runs],
            **asdict(test),
        }
        require(
            len({run.fingerprint for run in runs}) == len(runs),
            "two seeds ended in the same parameters: they are not independent runs",
        )
        require(
            test.shown,
            f"a mean gain above {test.min_gain:g} in greedy reward is not shown: gains "
            f"{', '.join(f'{gain:+.3f}' for gain in gains)}, {test.test}: p = {test.p_value:.3g}, "
            f"needed below {test.alpha:.3g}",
        )


def _log_prob_bytes(context: Context) -> float:
    """Bytes above the inputs of the cell's log-prob variant, forward and backward, at one size for all cells."""
    settings = context.cell.settings.get("log_prob", {})
    size = HeadSize(positions=512, hidden=32, vocabulary=4096, chunk=settings.get("chunk", 512))
    held = context.subject.head_bytes(settings.get("actor", "dense"), size, dtype=context.cell.dtype, training=True)
    return float(held)


def _train(context: Context, *, seed: int, steps: int, warm_start_steps: int | None = None) -> TrainingRun:
    def on_step(step: int, metrics: Mapping[str, float | None]) -> None:
        context.progress()
        context.on_step(seed, step, metrics)

    return context.subject.train(seed=seed, steps=steps, warm_start_steps=warm_start_steps, on_step=on_step)


def _reward(value: float | None) -> float:
    require(value is not None, "the subject told no held-out greedy reward")
    assert value is not None
    require_finite(value, "the held-out greedy reward")
    return value


CASES: tuple[Case, ...] = (Trains(), RepeatsBitEqual(), Learns())
