"""What torch says of itself, and a small canary product. Asked in another process, so that the asker stays light.

`python -m harness.hardware.torch_facts` prints the facts as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

_SIDE = 512  # of the canary's matrices: a few milliseconds on one core
_ROOT = Path(__file__).resolve().parents[2]


class TorchUnusableError(Exception):
    """torch cannot be asked; the message is its last line of output."""


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    version: str
    cpu_capability: str  # dispatch level, e.g. AVX512: bit-equality holds within one
    threads: int
    import_seconds: float
    canary_exact: bool  # a product of small whole numbers came out exact
    canary_seconds: float


def ask_torch(*, timeout_seconds: float = 120.0) -> TorchFacts:
    """Start a Python that imports torch. Raises TorchUnusableError when that fails or takes too long."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    command = [sys.executable, "-m", "harness.hardware.torch_facts"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise TorchUnusableError(f"importing torch took longer than {timeout_seconds:g} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise TorchUnusableError(last[0])
    return TorchFacts(**json.loads(done.stdout.splitlines()[-1]))


def canary(multiply: Callable[[Any, Any], Any]) -> tuple[bool, float]:
    """Whether `multiply` brings out a product of small whole numbers exactly, and its seconds.

    Its sums stay far below 2**24, so that float32 has no excuse.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randint(-8, 9, (_SIDE, _SIDE), generator=generator) for _ in range(2))
    started = perf_counter()
    product = multiply(left.float(), right.float())
    seconds = perf_counter() - started
    return bool((product.long() == left @ right).all()), seconds


def _facts() -> TorchFacts:
    began = perf_counter()
    import torch

    imported = perf_counter()
    exact, seconds = canary(torch.matmul)
    return TorchFacts(
        version=torch.__version__,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        import_seconds=imported - began,
        canary_exact=exact,
        canary_seconds=seconds,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(_facts())))
