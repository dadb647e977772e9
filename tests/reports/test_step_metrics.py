from __future__ import annotations

from dataclasses import fields

from reference_trainer.metrics import StepMetrics
from reports.step_metrics import LIVE_BYTES, PLOTS, STEP_SECONDS, TABLE, TITLES


def test_reports_look_for_metrics_by_the_names_that_the_trainer_gives_them():
    assert {*TITLES, STEP_SECONDS, LIVE_BYTES} <= {field.name for field in fields(StepMetrics)}
    assert set(PLOTS) <= set(TABLE) <= set(TITLES)
