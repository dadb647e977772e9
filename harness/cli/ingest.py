"""`rl-gauntlet ingest`: bundles into a store."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import RequestError
from harness.results import paths


def ingest(
    bundles: Annotated[list[Path], typer.Argument(help="Folders that runs left.", show_default=False)],
    store: Annotated[str, typer.Option(help="SQLite file or database URL; created when absent.")] = str(paths.STORE),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Load bundles into a store. Loading one twice changes nothing; one that has grown adds what is new."""
    # SQLAlchemy takes a quarter of a second to import, which no other command should pay.
    from harness.results.bundle import read_bundle
    from harness.results.store import Loaded, Store

    loaded: list[Loaded] = []
    refused: list[str] = []
    with Store(store, create=True) as opened:
        for folder in bundles:
            try:
                bundle = read_bundle(folder)
                counts = opened.ingest(bundle)
            except RequestError as error:
                refused.append(str(error))
                continue
            loaded.append(counts)
            if not as_json:
                state = "" if bundle.complete else " (the run was cut short or is still going)"
                damage = f", {len(bundle.damaged)} damaged lines left out" if bundle.damaged else ""
                print(
                    f"{counts.run_id}: {counts.results} results and {counts.step_metrics} step metrics"
                    f" added{damage}{state}"
                )
    if as_json:
        print(
            json.dumps(
                {"store": opened.name, "loaded": [asdict(counts) for counts in loaded], "refused": refused}, indent=2
            )
        )
    if refused:
        others = f"; {len(refused) - 1} more were refused" if len(refused) > 1 else ""
        raise RequestError(refused[0] + others)
