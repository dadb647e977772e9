"""Where runs, the store and reports lie unless the user says otherwise; relative to the working folder."""

from __future__ import annotations

from pathlib import Path

BUNDLES = Path("bundles")
STORE = BUNDLES / "rl-gauntlet.sqlite"
REPORTS = Path("build") / "reports"

RUN_FILE = "run.json"
RESULTS_FILE = "results.jsonl"


def bundle_folder(run_id: str) -> Path:
    """Return the folder that the run `run_id` leaves its records in."""
    return BUNDLES / run_id
