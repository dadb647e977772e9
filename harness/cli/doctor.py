"""`rl-gauntlet doctor`: what this machine has, what it can measure, and why not more."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import packages_distributions
from typing import Annotated, Any

import psutil
import typer

from harness.cli.output import on_terminal, print_json, print_table
from harness.errors import ExitCode
from harness.hardware.machine import describe_machine, installed_versions, package_version
from harness.hardware.probe import platforms, probe_platform
from harness.hardware.torch_facts import TorchUnusableError, ask_torch

EXTRAS = ("ray", "vllm")  # modules that the embedded default does without


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """What this machine has and can measure, and why not more. Exit code 3 when it can measure nothing."""
    found = examine()
    if as_json:
        print_json(found)
    elif on_terminal():
        print_table(["what", "found"], list(as_rows(found)))
    else:
        print("\n".join(f"{what}: {said}" for what, said in as_rows(found)))
    raise typer.Exit(ExitCode.PASSED if found["can_measure"] else ExitCode.NOTHING_MEASURED)


def examine() -> dict[str, Any]:
    """Everything the doctor knows, as plain data."""
    try:
        torch, torch_reason = ask_torch(), ""
    except TorchUnusableError as error:
        torch, torch_reason = None, str(error)
    findings = {platform: probe_platform(platform) for platform in platforms()}
    sound = torch is not None and torch.canary_exact
    return {
        "can_measure": sound and any(finding.evidence for finding in findings.values()),
        "machine": describe_machine(cpu_capability=torch.cpu_capability if torch else "unknown").model_dump(),
        "memory_available_bytes": psutil.virtual_memory().available,
        "versions": installed_versions(),
        "torch": asdict(torch) if torch else None,
        "torch_reason": torch_reason,
        "extras": {name: _extra(name) for name in EXTRAS},
        "platforms": {name: asdict(finding) for name, finding in findings.items()},
    }


def _extra(name: str) -> dict[str, str | None]:
    if importlib.util.find_spec(name) is None:
        return {"version": None, "reason": f'not installed; it is an extra: pip install "rl-gauntlet[{name}]"'}
    distributions = packages_distributions().get(name, [name])
    return {"version": package_version(distributions[0]), "reason": ""}


def as_rows(found: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """The findings for a reader, one line each."""
    machine, torch = found["machine"], found["torch"]
    gib = 1024**3
    yield "machine", f"{machine['machine_class']} ({machine['system']})"
    yield "cores", str(machine["cores"])
    free, total = found["memory_available_bytes"] / gib, machine["memory_bytes"] / gib
    yield "memory", f"{free:.1f} GiB available of {total:.1f}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    if torch is None:
        yield "torch", f"cannot be used: {found['torch_reason']}"
    else:
        yield "torch", f"{torch['version']}, {torch['cpu_capability']}, {torch['threads']} threads by default"
        verdict = "exact" if torch["canary_exact"] else "WRONG: do not trust a result of this machine"
        yield "canary product", f"{verdict}, {torch['canary_seconds'] * 1000:.1f} ms"
    for name, extra in found["extras"].items():
        yield name, extra["version"] or extra["reason"]
    for name, finding in found["platforms"].items():
        yield f"platform {name}", f"{finding['evidence'] or 'no evidence'}{_because(finding['reason'])}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
