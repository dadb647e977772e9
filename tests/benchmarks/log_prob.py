"""Bytes and seconds from hidden states to one log-prob a position, forward and backward, with the gradients of hidden
states and head: `python -m tests.benchmarks.log_prob`.

Bytes are the most that tensors hold above the inputs. `ledger` counts storages (`reference_trainer/live_bytes.py`);
`traced` counts them with tensors that have a shape and no memory, for sides that need more than `--memory` allows.
`resident` is by how much the process grew beyond its inputs, each side in a process of its own: it counts what lies
within an operator as well, and the allocator's own. Seconds are taken without a ledger, sides in turns. Prints one JSON
object; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.execution.limits import usable_cores
from harness.hardware.machine import cpu_model, machine_class
from reference_trainer.algorithms.logprobs import log_probs_from_hidden
from reference_trainer.config import LogProbVariant
from reference_trainer.live_bytes import peak_bytes

GIB = 2**30
Side = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # hidden, weight, labels: log-probs (N,)
FOREIGN = {"trl": "trl: selective_log_softmax, logits as they are", "verl": "verl: FusedLinearForPPO"}


def naive(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What everybody writes first."""
    return torch.log_softmax((hidden @ weight.T).float(), -1).gather(-1, labels[:, None])[:, 0]


def ours(
    variant: LogProbVariant, chunk: int, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    return log_probs_from_hidden(hidden, weight, labels, variant=variant, chunk=chunk, with_entropy=False)[0]


def sides(chunk: int) -> tuple[dict[str, Side], dict[str, str]]:
    """Sides by name, and why the others are not measured."""
    found: dict[str, Side] = {"naive": naive}
    found |= {variant: partial(ours, variant, chunk) for variant in get_args(LogProbVariant)}
    missing = {}
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    try:
        from trl.trainer.utils import selective_log_softmax

        found[FOREIGN["trl"]] = lambda hidden, weight, labels: selective_log_softmax(
            (hidden @ weight.T)[None], labels[None]
        )[0]
    except ImportError as error:
        missing[FOREIGN["trl"]] = f"not measured: {error}"
    try:
        from verl.utils.experimental.torch_functional import FusedLinearForPPO

        found[FOREIGN["verl"]] = lambda hidden, weight, labels: FusedLinearForPPO(chunk)(hidden, weight, labels)[0]
    except ImportError as error:
        missing[FOREIGN["verl"]] = f"not measured: {error}"
    return found, missing


def inputs(tokens: int, asked: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states as after a norm, and a head whose logits have a deviation of about 1."""
    torch.manual_seed(0)
    dtype = getattr(torch, asked.dtype)
    hidden = torch.randn(tokens, asked.hidden, dtype=dtype).requires_grad_()
    weight = torch.randn(asked.vocabulary, asked.hidden, dtype=dtype).mul_(asked.hidden**-0.5).requires_grad_()
    return hidden, weight, torch.randint(asked.vocabulary, (tokens,))


def step(side: Side, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> None:
    hidden.grad = weight.grad = None
    side(hidden, weight, labels).sum().backward()


def traced_bytes(side: Side, asked: argparse.Namespace) -> int:
    with FakeTensorMode():
        given = inputs(asked.tokens, asked)
        return peak_bytes(lambda: step(side, *given))


def alone(asked: argparse.Namespace) -> None:
    """In a process of its own: first what the process grows by, then the ledger, which itself costs time."""
    side = sides(asked.chunk)[0][asked.alone]
    step(side, *inputs(2, asked))  # what a first call loads is no part of a pass
    given = inputs(asked.tokens, asked)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark begins here
    before = _status("VmHWM")
    began = time.perf_counter()
    step(side, *given)
    seconds = time.perf_counter() - began
    grown = _status("VmHWM") - before
    given[0].grad = given[1].grad = None
    print(json.dumps({"resident": grown, "seconds": seconds, "ledger": peak_bytes(lambda: step(side, *given))}))


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def memory(asked: argparse.Namespace, every: Mapping[str, Side]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, side in every.items():
        try:
            traced = traced_bytes(side, asked)
        except Exception as error:  # a foreign side that can't be traced is told of, and is no reason to stop
            found[name] = f"not measured: tracing raised {type(error).__name__}: {str(error)[:200]}"
            continue
        found[name] = {"traced_gib": round(traced / GIB, 3)}
        if traced > asked.memory * GIB or (asked.only and name not in asked.only):
            continue
        command = [sys.executable, "-m", "tests.benchmarks.log_prob", "--alone", name]
        for option in ("tokens", "vocabulary", "hidden", "dtype", "chunk", "threads"):
            command += [f"--{option}", str(getattr(asked, option))]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
        found[name] |= {f"{key}_gib": round(answer[key] / GIB, 3) for key in ("ledger", "resident")}
        found[name]["seconds_alone_first_call"] = round(answer["seconds"], 2)
    return found


def seconds(asked: argparse.Namespace, every: Mapping[str, Side]) -> dict[str, Any]:
    """Each side in turn, `repeats` times over; the first round warms up and does not count."""
    given = inputs(asked.time_tokens, asked)
    taken: dict[str, list[float]] = {name: [] for name in every}
    for number in range(asked.repeats + 1):
        for name, side in every.items():
            began = time.perf_counter()
            step(side, *given)
            if number:
                taken[name].append(time.perf_counter() - began)
    return {
        name: {
            "seconds": [round(second, 3) for second in found],
            "ratio_to_naive_by_round": [
                round(second / plain, 3) for second, plain in zip(found, taken["naive"], strict=True)
            ],
            "ratio_to_naive_median": round(
                statistics.median(second / plain for second, plain in zip(found, taken["naive"], strict=True)), 3
            ),
        }
        for name, found in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32", "float64"])
    parser.add_argument("--chunk", type=int, default=128, help="positions of a chunk")
    parser.add_argument("--time-tokens", type=int, default=1024, help="positions for the seconds: the naive must fit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=float, default=2.0, help="GiB that a side may take when run for its bytes")
    parser.add_argument("--only", action="append", help="run for their bytes only these sides; trace them all")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.alone:
        alone(asked)
        return
    every, missing = sides(asked.chunk)
    versions = {"torch": torch.__version__} | {name: version(name) for name in FOREIGN if FOREIGN[name] in every}
    result = {
        "machine_class": machine_class(cpu_model(), cores=usable_cores()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": asked.threads,
        "versions": versions,
        "load_before": round(os.getloadavg()[0], 2),
        "size": {name: getattr(asked, name) for name in ("tokens", "vocabulary", "hidden", "dtype", "chunk")},
        "bytes_above_inputs": memory(asked, every) | missing,
        "time_tokens": asked.time_tokens,
        "seconds_forward_and_backward": seconds(asked, every) | missing,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
