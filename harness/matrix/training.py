"""A training of one's own: a file that names a model and an algorithm of the catalogues, and may change the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from harness.errors import RequestError, nearest
from harness.matrix.cell import Cell
from harness.matrix.expand import PlacedCell, SettingsLayer, model_layers
from harness.matrix.load import MATRICES, load_catalogue, validated
from harness.matrix.merge import merged
from harness.matrix.plan import where_named
from harness.matrix.schema import Dtype, Engine, Mode, Name, Seed, Settings, Size, Strict, Topology
from harness.matrix.yaml_document import Document, read_document
from harness.subjects import registry as subjects


class TrainingSpec(Strict):
    """What a training file may say; the words are those of a suite."""

    model: Name
    algorithm: Name
    size: Size = "tiny"
    hardware: Name = "cpu"
    mode: Mode = "sync"
    engine: Engine = "native"
    topology: Topology = "dp1"
    dtype: Dtype = "float32"
    subject: Name = "reference"
    seed: Seed = 0
    steps: int = Field(default=45, ge=1)
    settings: Settings = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training file, made out."""

    cell: Cell
    seed: int
    steps: int


def load_training(path: Path, folder: Path = MATRICES, *, steps: int | None = None) -> Training:
    """Read a training file; `steps` stands above its own.

    Raises RequestError with `file:line`, for the subject's own objections too.
    """
    if not path.is_file():
        raise RequestError(f'there is no training file "{path}"; give the path of a YAML file')
    document = read_document(path)
    spec = validated(document, TrainingSpec)
    catalogue = load_catalogue(folder)
    steps = spec.steps if steps is None else steps
    for axis, known in (
        ("hardware", catalogue.hardware),
        ("model", catalogue.models),
        ("algorithm", catalogue.algorithms),
    ):
        _require_known(document, axis, getattr(spec, axis), known)
    model, algorithm = catalogue.models[spec.model], catalogue.algorithms[spec.algorithm]
    if spec.size not in model.sizes:
        where = document.where(("size",)) if spec.size != "tiny" else document.where(("model",))
        raise RequestError(
            f'{where}: model "{spec.model}" has no size "{spec.size}"; {nearest(spec.size, model.sizes)}'
        )
    axes = ("subject", "hardware", "model", "algorithm", "mode", "engine", "topology", "size", "dtype")
    cell = Cell(
        **{axis: getattr(spec, axis) for axis in axes},
        settings=merged(
            {"model": model.sizes[spec.size]}, model.settings, algorithm.settings, spec.settings, {"steps": steps}
        ),
    )
    layers = (
        *model_layers(cell, model, catalogue.documents["models"]),
        SettingsLayer(document=catalogue.documents["algorithms"], place=(spec.algorithm, "settings")),
        SettingsLayer(document=document, place=("settings",)),
    )
    placed = PlacedCell(cell=cell, where=str(path), layers=layers)
    try:
        subjects.validate_settings(cell)
    except RequestError as error:
        said = str(error).removeprefix(f"cell {cell.id}: ")
        raise RequestError(f"{where_named(placed, said)}: {said}") from None
    return Training(cell=cell, seed=spec.seed, steps=steps)


def _require_known(document: Document, axis: str, name: str, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    if name not in names:
        where = document.where((axis,))
        raise RequestError(f'{where}: unknown {axis} "{name}"; {nearest(name, names)}')
