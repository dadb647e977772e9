"""One hash of all parameters, for comparing runs bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import nn


def fingerprint(modules: Mapping[str, nn.Module]) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of the modules' parameters, in the order of their names."""
    digest = hashlib.sha256()
    for prefix, module in sorted(modules.items()):
        for name, parameter in sorted(module.named_parameters()):
            digest.update(f"{prefix}.{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
