"""The catalogue tests itself: no case without a mutant, no mutant without a case, nothing undocumented."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.cases.base import Case
from harness.cases.registry import all_cases
from harness.matrix.cell import AXES
from harness.mutants.registry import all_mutants
from harness.subjects.registry import capabilities

CASES = all_cases()
MUTANTS = all_mutants()
# Takes minutes a run: that it is the cell's own training is shown by `cell.trains`, in a second.
TOO_SLOW_TO_RESTRICT = {"cell.learns"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
class TestEveryCase:
    def test_is_killed_by_a_mutant(self, case: Case) -> None:
        assert any(mutant.case == case.id for mutant in MUTANTS.values())

    def test_tells_a_maintainer_what_to_look_for(self, case: Case) -> None:
        assert "When it fails" in (type(case).__doc__ or "")
        assert case.origin

    def test_reads_axes_that_exist_and_needs_what_the_reference_offers(self, case: Case) -> None:
        assert set(case.axes) <= set(AXES)
        assert case.needs
        assert case.needs <= capabilities("reference")

    def test_judges_enough_examples(self, case: Case) -> None:
        assert case.examples >= 50 or case.examples == 1

    def test_proves_that_it_reads_the_cell(self, case: Case) -> None:
        own = [mutant for mutant in MUTANTS.values() if mutant.case == case.id]
        if case.id in TOO_SLOW_TO_RESTRICT:
            return
        if "topology" in case.axes:
            assert any(mutant.only_topology for mutant in own)
        if "model" in case.axes and "topology" not in case.axes:
            assert any(mutant.only_model for mutant in own)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_names_a_case_and_breaks_what_the_case_reads(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.case in CASES
    assert mutant.defect
    axes = CASES[mutant.case].axes
    assert mutant.only_model is None or "model" in axes
    assert mutant.only_topology is None or "topology" in axes
    assert mutant.only_algorithm is None or "algorithm" in axes


def test_planning_does_not_import_torch() -> None:
    program = (
        "import sys, harness.cases.registry, harness.mutants.registry, harness.subjects.registry as subjects;"
        "from harness.subjects import reference_settings;"
        "subjects.capabilities('reference');"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
