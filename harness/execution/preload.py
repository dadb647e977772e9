"""What the fork server imports once, so that each child starts in milliseconds.

Imports only: a tensor operation here would start torch's thread pool, which a forked child inherits broken.
"""

from __future__ import annotations

import signal
from importlib import import_module

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's; the fork server heeds it only once it serves

for _name in (
    "torch",
    "transformers.models.gemma4.modeling_gemma4",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.qwen3_5.modeling_qwen3_5",
    "reasoning_gym",
    "hypothesis",
    "harness.execution.child",
    "harness.subjects.reference",
):
    import_module(_name)
