"""The curve to expect of each algorithm: `python -m tests.benchmarks.learning_curves`.

Trains the tiny Qwen3 with every algorithm of matrices/algorithms.yaml over several seeds, writes what came of it as
JSON and SVG to docs/algorithms/curves, and rewrites what stands between the curve marks of docs/algorithms/NAME.md.
Size tiny: it shows that the rule learns here and how that looks, and says nothing of a model's quality. A seed that
falls is shown like one that rises; an algorithm that breaks off is named, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
import yaml

from harness.execution.limits import usable_cores
from harness.hardware.machine import cpu_model, machine_class
from harness.matrix.load import load_catalogue
from harness.matrix.training import load_training
from harness.subjects.registry import build_subject

BEGIN, END = "<!-- curve:begin -->", "<!-- curve:end -->"
SETTINGS = {
    "task": {"prompt": "expression", "prompts_per_step": 32},
    "rollout": {"max_tokens": 4},
    "batch": {"mini_batch": 128, "micro_batch": 128},
    "warm_start": {"steps": 120, "batch": 64, "lr": 3e-3},
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", action="append", metavar="GLOB", help="only these; default: all")
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("docs/algorithms"))
    parser.add_argument("--settings", default="{}", help="JSON, laid over the settings: for a quick try")
    asked = parser.parse_args(arguments)
    globs = asked.algorithm or ["*"]
    names = [name for name in load_catalogue().algorithms if any(fnmatch(name, glob) for glob in globs)]
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    failed = []
    for name in names:
        try:
            curve = measured(name, seeds=seeds, steps=asked.steps, changes=json.loads(asked.settings))
        except (FloatingPointError, ValueError) as error:
            print(f"{name}: broke off: {error}", file=sys.stderr)
            failed.append(name)
            continue
        write(name, curve, asked.out)
        before, after = (statistics.fmean(run[key] for run in curve["runs"]) for key in ("before", "after"))
        print(f"{name}: greedy reward {before:.3f} before, {after:.3f} after", flush=True)
    return 1 if failed or not names else 0


def measured(name: str, *, seeds: list[int], steps: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Train over the seeds. Raises what a training raises."""
    spec = {"model": "qwen3", "algorithm": name, "steps": steps, "settings": {**SETTINGS, **changes}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(yaml.safe_dump(spec), encoding="utf-8")
        cell = load_training(path).cell
    runs = []
    for seed in seeds:
        subject = build_subject(cell, threads=1)
        try:
            run = subject.train(seed=seed, steps=steps)
        finally:
            subject.close()
        runs.append(
            {
                "seed": seed,
                "before": run.greedy_reward_before,
                "after": run.greedy_reward_after,
                "reward": [round(step["reward"] or 0.0, 5) for step in run.steps],
            }
        )
    return {
        "cell": cell.id,
        "size": cell.size,
        "steps": steps,
        "settings": cell.settings,
        "torch": torch.__version__,
        "machine_class": machine_class(cpu_model(), cores=usable_cores()),
        "command": f"python -m tests.benchmarks.learning_curves --algorithm {name} "
        f"--seeds {','.join(map(str, seeds))} --steps {steps}"
        + (f" --settings '{json.dumps(changes)}'" if changes else ""),
        "runs": runs,
    }


def write(name: str, curve: dict[str, Any], out: Path) -> None:
    """The data, the picture and the page's curve block."""
    (out / "curves").mkdir(parents=True, exist_ok=True)
    (out / "curves" / f"{name}.json").write_text(json.dumps(curve, indent=1) + "\n", encoding="utf-8")
    draw(curve, out / "curves" / f"{name}.svg")
    page = out / f"{name}.md"
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {name}\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{block(name, curve)}{END}{tail}", encoding="utf-8")


def block(name: str, curve: dict[str, Any]) -> str:
    """What stands between the marks, in Markdown."""
    runs = curve["runs"]
    rows = [f"| {run['seed']} | {run['before']:.3f} | {run['after']:.3f} |" for run in runs]
    means = [statistics.fmean(run[key] for run in runs) for key in ("before", "after")]
    return "\n".join(
        [
            f"![Reward by step](curves/{name}.svg)",
            "",
            "Greedy reward on 200 held-out prompts:",
            "",
            "| seed | before the first step | after the last |",
            "|---|---|---|",
            *rows,
            f"| mean | {means[0]:.3f} | {means[1]:.3f} |",
            "",
            f"Cell `{curve['cell']}`, size {curve['size']}, {curve['steps']} steps, one thread, torch {curve['torch']}",
            f"on {curve['machine_class']}; [data](curves/{name}.json), made by",
            "",
            "```sh",
            curve["command"],
            "```",
            "",
        ]
    )


def draw(curve: dict[str, Any], path: Path) -> None:
    """Mean reward of the samples by step: each seed thin, their mean bold. The same data give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "curve", "svg.fonttype": "path"}):
        figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
        figure.patch.set_alpha(0.0)
        axes.patch.set_alpha(0.0)
        steps = range(curve["steps"])
        for run in curve["runs"]:
            axes.plot(steps, run["reward"], color="#4c9ad4", linewidth=0.8, alpha=0.7)
        mean = [statistics.fmean(rewards) for rewards in zip(*(run["reward"] for run in curve["runs"]), strict=True)]
        axes.plot(steps, mean, color="#d1603d", linewidth=2.0)
        axes.set_xlabel("step", color="#808080")
        axes.set_ylabel("reward", color="#808080")
        axes.tick_params(colors="#808080")
        for spine in axes.spines.values():
            spine.set_color("#808080")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
