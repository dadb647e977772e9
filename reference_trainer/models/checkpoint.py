"""Weights on disk: safetensors and a config.json, as transformers writes them, with the drafter in the same file.

What is saved is the plain architecture, adapters merged (`weights/export.py`), so that any engine can load it. The
library knows nothing of a drafter: it would drop `mtp.*` on save and ignores it on load, so both are done here.
Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from reference_trainer.config import ConfigError, ModelConfig
from reference_trainer.models.checkpoint_config import checkpoint_config, checkpoint_folder
from reference_trainer.models.families import FAMILIES
from reference_trainer.models.lora import DRAFTERS
from reference_trainer.models.precision import cast_weights
from reference_trainer.weights.export import export_tensors, live_entries

_ONE_FILE = "model.safetensors"


def save_policy(policy: PreTrainedModel, folder: str | Path) -> None:
    """Write the plain weights of a policy, its drafter's too, and its configuration."""
    folder = Path(folder)
    drafter: dict[str, torch.Tensor] = {}
    own: dict[str, torch.Tensor] = {}
    for name, tensor in export_tensors(policy):
        (drafter if _of_drafter(name) else own)[name] = tensor
    policy.save_pretrained(folder, state_dict=own, max_shard_size="100TB")
    if drafter:
        written = load_file(folder / _ONE_FILE)
        # a copy each: safetensors refuses tensors that share memory, as a drafter may with its policy's embeddings
        written |= {name: tensor.clone().contiguous() for name, tensor in drafter.items()}
        save_file(written, folder / _ONE_FILE, metadata={"format": "pt"})


def load_policy(model: ModelConfig, *, dtype: torch.dtype) -> PreTrainedModel:
    """The policy in the folder `model.checkpoint`, in evaluation mode, without the drafter (`load_drafter`).

    Raises ConfigError when the folder is of another architecture, is incomplete or holds more, or can't be read.
    """
    folder, config = checkpoint_folder(model), checkpoint_config(model)
    _require_safetensors(folder)
    model_class = FAMILIES[model.architecture].model_class
    try:
        with torch.random.fork_rng(devices=[]):  # the library would draw what is missing, before that is refused
            loaded: Any = model_class.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise _unreadable(folder, error) from None
    policy, report = loaded
    missing, unexpected = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    unexpected = [name for name in unexpected if not _of_drafter(name)]
    mismatched = sorted(str(entry[0]) for entry in report["mismatched_keys"])
    for what, names in (("lacks", missing), ("has unknown", unexpected), ("has other shapes of", mismatched)):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise ConfigError(
                f'"model.checkpoint" {folder} {what} {shown}; give weights that fit their own config.json'
            )
    cast_weights(policy, dtype)
    return policy.eval()


@torch.no_grad()
def load_drafter(policy: PreTrainedModel, folder: str | Path) -> bool:
    """Fill the drafter that the policy has from the folder. False when the folder has none: it stays as it is.

    Raises ConfigError when names or shapes differ.
    """
    folder = Path(folder)
    try:
        found = dict(_drafter_tensors(folder))
    except (SafetensorError, OSError) as error:
        raise _unreadable(folder, error) from None
    own = {name: tensor for name, tensor in live_entries(policy).items() if _of_drafter(name)}
    if not found or not own:
        return False
    wrong = sorted(own.keys() ^ found.keys()) or sorted(n for n in own if own[n].shape != found[n].shape)
    if wrong:
        raise ConfigError(
            f"the drafter in {folder} is not the one that model.drafter describes: {wrong[0]} differs; change "
            "model.drafter, or leave its weights out of the folder"
        )
    for name, tensor in own.items():
        tensor.copy_(found[name])
    return True


def _of_drafter(name: str) -> bool:
    return name.split(".")[0] in DRAFTERS


def _drafter_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys() if _of_drafter(name))  # noqa: SIM118


def _require_safetensors(folder: Path) -> None:
    if any((folder / name).is_file() for name in (_ONE_FILE, f"{_ONE_FILE}.index.json")):
        return
    pickled = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
    if pickled:
        raise ConfigError(
            f'"model.checkpoint" {folder} has pickled weights only ({pickled[0]}), which are never read; convert them '
            "to safetensors"
        )
    raise ConfigError(f'"model.checkpoint" {folder} has no {_ONE_FILE}; give a complete folder')


def _unreadable(folder: Path, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())
    return ConfigError(f"the weights in {folder} can't be read: {reason[:200]}; give a complete folder")
