"""Matrix files from disk: the catalogues (hardware, models, algorithms) and suites, with the place of every value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import RequestError, nearest
from harness.matrix.merge import merged
from harness.matrix.schema import AlgorithmEntry, HardwareEntry, ModelEntry, Name, SuiteSpec
from harness.matrix.yaml_document import Document, Place, read_document

MATRICES = Path(__file__).resolve().parents[2] / "matrices"  # beside the package, in a clone and in a wheel
CATALOGUES = ("hardware", "models", "algorithms")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What a suite may name. The documents say where each entry stands."""

    hardware: Mapping[str, HardwareEntry]
    models: Mapping[str, ModelEntry]
    algorithms: Mapping[str, AlgorithmEntry]
    documents: Mapping[str, Document]


@dataclass(frozen=True, kw_only=True)
class SuiteFile:
    """One suite as its file says it; `includes` are loaded, in order."""

    document: Document
    spec: SuiteSpec
    includes: tuple[SuiteFile, ...]


def load_catalogue(folder: Path = MATRICES) -> Catalogue:
    """Read the three catalogues of a folder. Raises RequestError."""
    documents = {name: read_document(folder / f"{name}.yaml") for name in CATALOGUES}
    return Catalogue(
        hardware=validated(documents["hardware"], dict[Name, HardwareEntry]),
        models=_extended(validated(documents["models"], dict[Name, ModelEntry]), documents["models"]),
        algorithms=validated(documents["algorithms"], dict[Name, AlgorithmEntry]),
        documents=documents,
    )


def _extended(models: Mapping[str, ModelEntry], document: Document) -> dict[str, ModelEntry]:
    """Give each variant the sizes and settings of the entry that it extends."""
    extended = {}
    for name, entry in models.items():
        if entry.extends is not None:
            base = models.get(entry.extends)
            if base is None or base.extends is not None:
                plain = [other for other, its in models.items() if its.extends is None]
                where = document.where((name, "extends"))
                raise RequestError(
                    f'{where}: "{entry.extends}" is no model with sizes of its own; {nearest(entry.extends, plain)}'
                )
            settings = merged(base.settings, entry.settings)
            entry = entry.model_copy(update={"sizes": base.sizes, "settings": settings})
        extended[name] = entry
    return extended


def suite_names(folder: Path = MATRICES) -> list[str]:
    """Names of the suites in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml") if path.stem not in CATALOGUES)


def load_suite(suite: str, folder: Path = MATRICES) -> SuiteFile:
    """Read a suite by its name in `folder` or by the path of a YAML file, and its includes. Raises RequestError."""
    return _load(suite_path(suite, folder), folder=folder, chain=())


def suite_path(suite: str, folder: Path = MATRICES) -> Path:
    """Where a suite lies. Raises RequestError when there is none of that name or path."""
    return _locate(suite, folder=folder, beside=Path(), asked_at="")


def _locate(suite: str, *, folder: Path, beside: Path, asked_at: str) -> Path:
    if "/" in suite or suite.endswith((".yaml", ".yml")):
        path = beside / suite
        if path.is_file():
            return path
        raise RequestError(f'{asked_at}there is no suite file "{path}"; give the path of a YAML file')
    known = suite_names(folder)
    if suite in known:
        return folder / f"{suite}.yaml"
    hint = nearest(suite, known)
    raise RequestError(f'{asked_at}there is no suite "{suite}" in {folder}; {hint}')


def _load(path: Path, *, folder: Path, chain: tuple[Path, ...]) -> SuiteFile:
    document = read_document(path)
    spec = validated(document, SuiteSpec)
    chain = (*chain, path.resolve())
    includes = []
    for index, name in enumerate(spec.include):
        asked_at = document.where(("include", index))
        included = _locate(name, folder=folder, beside=path.parent, asked_at=f"{asked_at}: ")
        if included.resolve() in chain:
            circle = " → ".join(p.stem for p in (*chain[chain.index(included.resolve()) :], included))
            raise RequestError(f'{asked_at}: including "{name}" closes a circle ({circle}); remove one include')
        includes.append(_load(included, folder=folder, chain=chain))
    return SuiteFile(document=document, spec=spec, includes=tuple(includes))


def validated(document: Document, schema: type[T]) -> T:
    """The document's data as `schema`. Raises RequestError for the first thing that does not fit, with its line."""
    try:
        return TypeAdapter(schema).validate_python(document.data)
    except ValidationError as error:
        details = error.errors()
        first = min(details, key=lambda detail: _line_of(document, detail))
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise RequestError(f"{document.where(_place(first))}: {_sentence(first)}{more}") from None


def _line_of(document: Document, detail: ErrorDetails) -> int:
    return int(document.where(_place(detail)).rpartition(":")[2])


def _place(detail: ErrorDetails) -> Place:
    place = tuple(part for part in detail["loc"] if part != "[key]")
    context = detail.get("ctx", {})
    return (*place, context["value"]) if context.get("what") == "key" else place


def _sentence(detail: ErrorDetails) -> str:
    place, context, value = _place(detail), detail.get("ctx", {}), detail["input"]
    name = _dotted(place)
    match detail["type"]:
        case "unknown_name":
            return detail["msg"]
        case "missing":
            return f"{name} is missing; add it"
        case "string_pattern_mismatch":
            rule = "dp1, dp2, …" if "topology" in place else "lower-case letters, digits, dots and dashes"
            return f'"{value}" is not a valid name; use {rule}'
        case "too_short":
            return f"{name} has {context['actual_length']} entries; it should have at least {context['min_length']}"
        case "string_too_short":
            return f"{name} is empty; it should say something"
        case "value_error":
            return f"{name}: {context['error']}"
        case kind:
            needed = _NEEDED.get(kind) or detail["msg"].removeprefix("Input should ")
            return f"{name} is {_shown(value)}; it should {needed}"


_NEEDED = {
    "dict_type": "be a mapping",
    "model_type": "be a mapping",
    "tuple_type": "be a list",
    "string_type": "be text",
    "int_type": "be a whole number",
    "float_type": "be a number",
}


def _dotted(place: Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return f'"{text.removeprefix(".")}"' if place else "the file"


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:60] + "…"
