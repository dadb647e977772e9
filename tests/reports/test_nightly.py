from __future__ import annotations

import math
import re

import pytest

from harness.results.bundle import read_bundle
from harness.results.vocabulary import Evidence, FailureClass, Flag, Outcome
from reports.nightly import render_nightly
from tests.reports import builders
from tests.reports.builders import CELLS, case, header, planned_cell, shared, steps

A, B, C = CELLS[:3]


def section(report, title):
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", report, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1].strip()


@pytest.fixture
def report(tmp_path):
    def write(planned, records, *, end=0, **changes):
        run = header(planned, **changes)
        return render_nightly(builders.bundle(tmp_path / "b", run, records(run), end=end))

    return write


def test_the_verdict_comes_first_with_its_denominators(tmp_path):
    text = render_nightly(builders.night(tmp_path / "b", cells=CELLS[:2], cases=("x.y", "x.z")))
    assert text.splitlines()[0] == "# PASSED · smoke · 2026-11-30 02:00 UTC"
    assert text.splitlines()[2].startswith("**2 of 2 cells passed**, 4 of 4 planned cases passed.")


def test_commit_machine_versions_and_size_are_named(tmp_path):
    text = render_nightly(builders.night(tmp_path / "b", cells=CELLS[:1], cases=("x.y",)))
    for named in ("0123456789abcdef", "xeon-2c", "AVX512", "torch 2.13.0", "tiny float32"):
        assert named in text


def test_a_failure_carries_class_message_and_command(report):
    text = report(
        [planned_cell(A, ["x.y"]), planned_cell(B, [shared("x.y", A)])],
        lambda run: [
            case(
                run,
                A,
                "x.y",
                Outcome.FAILED,
                failure_class=FailureClass.NUMERICS_NAN,
                message="expected finite, saw nan",
                reproduce="rl-gauntlet run smoke --cell a --case x.y --case-seed 7 --input '{\"n\":0}'",
            )
        ],
    )
    failures = section(text, "Failures")
    assert failures.count("### ") == 1
    assert "`numerics.nan`" in failures
    assert "shared with 1 more cell" in failures
    assert "```\nexpected finite, saw nan\n```" in failures
    assert "```sh\nrl-gauntlet run smoke --cell a --case x.y --case-seed 7 --input '{\"n\":0}'\n```" in failures
    assert text.startswith("# FAILED")


def test_all_failed_lists_every_failure(tmp_path):
    cells, cases = CELLS[:3], ("x.y", "x.z")
    outcomes = {(cell, name): {"outcome": Outcome.CRASHED} for cell in cells for name in cases}
    text = render_nightly(builders.night(tmp_path / "b", cells=cells, cases=cases, outcomes=outcomes))
    assert "**0 of 3 cells passed**, 0 of 6" in text
    assert section(text, "Failures").count("### ") == 6


def test_a_run_killed_before_its_first_record_proves_nothing(report):
    text = report([planned_cell(A, ["x.y"])], lambda run: [], end=None)
    assert text.startswith("# NOTHING MEASURED")
    assert "**The run was cut short**" in text
    assert "the run ended before it: 1 case in 1 cell" in section(text, "Not run")
    assert section(text, "Steps") == "Not measured: no step was recorded."
    assert section(text, "Learning") == "Not measured: no case tested it."
    assert "not measured" in section(text, "Memory and time")
    assert "pass " not in section(text, "Cells and cases")


def test_an_empty_plan_is_told(report):
    text = report([], lambda run: [])
    assert text.startswith("# NOTHING MEASURED")
    assert "No case was planned." in text


def test_only_smoke_is_not_called_a_pass(report):
    text = report([planned_cell(A, ["x.y"])], lambda run: [case(run, A, "x.y", flags=(Flag.SMOKE,))])
    assert text.startswith("# NOTHING MEASURED")
    assert "| smoke only | 0 of 1 |" in text


def test_kinds_of_evidence_are_counted_apart(report):
    text = report(
        [
            planned_cell(A, ["x.y"]),
            planned_cell(B, ["x.y"], evidence=Evidence.EMULATED),
            planned_cell(C, ["x.y"], evidence=None),
        ],
        lambda run: [case(run, A, "x.y"), case(run, B, "x.y", evidence=Evidence.EMULATED)],
    )
    assert "Evidence *device*: 1 of 1 cells passed. Evidence *emulated*: 1 of 1 cells passed." in text
    assert text.startswith("# INCOMPLETE")


def test_flaky_passes_and_shared_outcomes_are_marked(report):
    text = report(
        [planned_cell(A, ["x.y"]), planned_cell(B, [shared("x.y", A)])],
        lambda run: [case(run, A, "x.y", flags=(Flag.FLAKY,), attempt=2)],
    )
    assert section(text, "Flaky") == f"- `{A}` `x.y` passed on attempt 2"
    assert f"| `{B}` | flaky (shared) |" in section(text, "Cells and cases")


def test_curves_run_from_first_to_last_and_what_no_step_measured_is_named(report):
    text = report([planned_cell(A, ["train.learns"])], lambda run: [case(run, A, "train.learns"), *steps(run, A)])
    row = next(line for line in section(text, "Steps").splitlines() if line.startswith(f"| `{A}`"))
    assert row.startswith(f"| `{A}` | `train.learns` | 3 | 12 | 0.435 → 0.781 `▁")
    assert row.count("not measured") == 2  # gap after weight sync, degenerate groups
    assert "Not measured by any step: gap after weight sync, degenerate groups" in text
    assert "drafts proposed" in text


def test_values_that_are_no_number_are_seen(report):
    def records(run):
        spoilt = [one.model_copy(update={"metrics": {**one.metrics, "kl": math.nan}}) for one in steps(run, A, count=2)]
        return [case(run, A, "train.learns"), *spoilt]

    text = report([planned_cell(A, ["train.learns"])], records)
    assert "nan → nan" in text
    assert "(6 not finite)" in text


def test_learning_shows_its_test_and_each_seed(report):
    text = report(
        [planned_cell(A, ["cell.learns"])],
        lambda run: [
            case(
                run, A, "cell.learns", notes={"learning": {"seeds": [101, 102], "test": "one-sided t", "bound": 0.21}}
            ),
            *steps(run, A, "cell.learns", seeds=(101, 102)),
        ],
    )
    learning = section(text, "Learning")
    assert "**passed**, seeds 101, 102; test one-sided t; bound 0.21" in learning
    assert re.search(r"seed 101: reward 0\.4\d+ → 0\.7\d+ `▁", learning)


def test_a_thousand_large_failures_stay_below_what_a_step_summary_takes(report):
    names = [f"x.{number}" for number in range(1000)]
    text = report(
        [planned_cell(A, names)],
        lambda run: [case(run, A, name, Outcome.FAILED, message="m" * 4000, reproduce="r" * 15_000) for name in names],
    )
    assert len(text.encode()) < 1 << 20
    failures = section(text, "Failures")
    assert all(f"`{name}`" in failures for name in names)


def test_damaged_lines_are_told(tmp_path):
    builders.night(tmp_path / "b", cells=CELLS[:1], cases=("x.y",))
    with (tmp_path / "b" / "results.jsonl").open("ab") as file:
        file.write(b"rubbish\n")
    assert "| damaged lines | line 3: not a record |" in render_nightly(read_bundle(tmp_path / "b"))
