"""`rl-gauntlet train FILE`: one training outside any matrix, step by step, with its metrics kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from harness.cli.output import print_json
from harness.cli.selecting import DEFAULT_MATRICES, MatricesOption
from harness.errors import NothingMeasuredError, RequestError

SHOWN = ("reward", "kl", "entropy", "policy_loss", "grad_norm", "step_seconds")


def train(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A training file: model, algorithm, settings (YAML).")],
    seed: Annotated[int | None, typer.Option(help="In place of the file's.", min=0, max=2**31 - 1)] = None,
    steps: Annotated[int | None, typer.Option(help="In place of the file's.", min=1)] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A new folder for metrics; trainings/NAME-TIME when not said.")
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep the final policy there too, as safetensors.")] = False,
    threads: Annotated[int, typer.Option(help="Threads to compute with; 0: all cores.", min=0)] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")
    ] = False,
    matrices: MatricesOption = DEFAULT_MATRICES,
) -> None:
    """Train once, outside any matrix.

    Leaves settings.json, steps.jsonl (a line a step, written as it happens) and summary.json. Exit codes: 0 trained to
    the end, 2 the request was wrong, 3 the training broke off.
    """
    from harness.execution.limits import usable_cores
    from harness.matrix.training import load_training
    from harness.subjects.registry import build_subject

    training = load_training(file, matrices, steps=steps)
    seed, steps = training.seed if seed is None else seed, training.steps
    folder = _new_folder(out or Path("trainings") / f"{file.stem}-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    _write(folder / "settings.json", {"cell": training.cell.id, "seed": seed, "steps": steps, **_plain(training.cell)})
    subject = build_subject(training.cell, threads=threads or usable_cores())
    done = 0
    try:
        with (folder / "steps.jsonl").open("w", encoding="utf-8") as lines:

            def on_step(step: int, metrics: Mapping[str, float | None]) -> None:
                nonlocal done
                done = step + 1
                _append(lines, metrics)
                if not as_json:
                    print(_line(step, steps, metrics), flush=True)

            run = subject.train(seed=seed, steps=steps, on_step=on_step, save_to=folder / "policy" if save else None)
    except (FloatingPointError, ValueError, MemoryError, OSError) as error:
        raise NothingMeasuredError(
            f"the training broke off after {done} of {steps} steps: {error}; {folder}/steps.jsonl has them"
        ) from error
    finally:
        subject.close()
    summary = {
        "cell": training.cell.id,
        "size": training.cell.size,
        "seed": seed,
        "steps": len(run.steps),
        "greedy_reward_before": run.greedy_reward_before,
        "greedy_reward_after": run.greedy_reward_after,
        "fingerprint": run.fingerprint,
        "folder": str(folder),
        **run.notes,
    }
    _write(folder / "summary.json", summary)
    if as_json:
        print_json(summary)
        return
    before, after = run.greedy_reward_before, run.greedy_reward_after
    print(f"greedy reward on held-out prompts: {before:.3f} before, {after:.3f} after")
    print(f"fingerprint of the parameters: {run.fingerprint[:16]}")
    print(f"metrics: {folder}")


def _new_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise RequestError(f'folder "{folder}" is there already; name a new one with --out') from None
    except OSError as error:
        raise RequestError(f'folder "{folder}" can\'t be made: {error.strerror}; name another with --out') from None
    return folder


def _plain(cell: Any) -> dict[str, Any]:
    return {"size": cell.size, "dtype": cell.dtype, "settings": cell.settings}


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _append(lines: TextIO, metrics: Mapping[str, float | None]) -> None:
    lines.write(json.dumps(dict(metrics)) + "\n")
    lines.flush()


def _line(step: int, steps: int, metrics: Mapping[str, float | None]) -> str:
    shown = (f"{name} {value:.4g}" for name in SHOWN if (value := metrics.get(name)) is not None)
    return f"[{step + 1}/{steps}] {', '.join(shown)}"
