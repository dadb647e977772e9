"""What the fork server imports once, so that each child starts in milliseconds.

Imports only: a tensor operation here would start torch's thread pool, which a forked child inherits broken.
"""

from __future__ import annotations

import torch
import transformers.models.gemma4.modeling_gemma4
import transformers.models.qwen3.modeling_qwen3
import transformers.models.qwen3_5.modeling_qwen3_5

import harness.cases.registry
import harness.execution.child
import harness.subjects.reference  # noqa: F401
