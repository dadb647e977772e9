"""The doors between the rooms of docs/architecture.md, read off the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "reference_trainer", "reports")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
ENTRANCES = ("harness.subjects.reference", "harness.mutants", "harness.emulation", "harness.memory", "harness.hardware")
REPORTS_READ = ("harness.results", "harness.errors")


def imports(module: str, *, at_import: bool = False) -> Iterator[str]:
    """Our own modules that a module imports: anywhere, or only what runs when it is imported itself."""
    for node in _nodes(ast.parse(MODULES[module].read_text(encoding="utf-8")), at_import=at_import):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in full]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


def _nodes(tree: ast.AST, *, at_import: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if at_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _nodes(node, at_import=at_import)


def within(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith((f"{room}.", f"{room}_")) for room in rooms)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_goes_only_through_doors_that_exist(module: str) -> None:
    for name in imports(module):
        room, other = module.split(".")[0], name.split(".")[0]
        if room == "reference_trainer":
            assert other == "reference_trainer", f"{module} imports {name}"
        if room == "harness":
            assert other != "reports", f"{module} imports {name}"
            assert other != "reference_trainer" or within(module, ENTRANCES), f"{module} imports {name}"
        if room == "reports":
            assert other == "reports" or within(name, REPORTS_READ), f"{module} imports {name}"


def test_no_import_goes_in_a_circle() -> None:
    graph = {module: set(imports(module, at_import=True)) & MODULES.keys() for module in MODULES}
    done: set[str] = set()

    def visit(module: str, chain: tuple[str, ...]) -> None:
        assert module not in chain, " → ".join((*chain[chain.index(module) :], module))
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*chain, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_no_vendor_is_named_outside_the_platforms() -> None:
    vendors = {"cuda", "nvidia", "rocm", "hip", "amd", "npu", "ascend", "hccl", "nccl"}
    for module, path in MODULES.items():
        if module.startswith("reference_trainer") and not module.startswith("reference_trainer.platforms"):
            words = set(re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower()))
            assert not words & vendors, f"{module} names {words & vendors}"


ROOMS_WITHOUT_TORCH = ("matrix", "results", "execution", "cli", "hardware", "cases")
PRELOADED = "harness.execution.preload"  # what the fork server imports, so that its children need not


def test_planning_executing_and_recording_start_without_torch() -> None:
    rooms = tuple(f"harness.{room}" for room in ROOMS_WITHOUT_TORCH)
    modules = [module for module in MODULES if within(module, rooms) and module != PRELOADED]
    code = f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n    print(name)\n"
    code += "    assert 'torch' not in sys.modules, name"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == modules
