"""What the matrix files may say: hardware, models, algorithms, suites. Every mistake is an error, never a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from harness.errors import nearest
from harness.matrix.cell import AXES

MODES = ("sync",)
ENGINES = ("native",)
SIZES = ("tiny", "shapes", "full", "local")
DTYPES = ("float32", "float64", "bfloat16")


class Strict(BaseModel):
    """Frozen; nothing is converted; an unknown key is an error that names the nearest one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        for key in data if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                raise unknown("key", key, cls.model_fields)
        return data


def unknown(what: str, value: str, known: Any) -> PydanticCustomError:
    """The error for a name outside a closed set."""
    return PydanticCustomError(
        "unknown_name",
        'unknown {what} "{value}"; {remedy}',
        {"what": what, "value": value, "remedy": nearest(value, known)},
    )


def _one_of(what: str, known: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known:
            raise unknown(what, value, known)
        return value

    return AfterValidator(check)


def _as_tuple(value: Any) -> Any:
    """A single name stands for a list of one."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


T = TypeVar("T")
Many = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]
Some = Annotated[tuple[T, ...], BeforeValidator(_as_tuple), Field(min_length=1)]

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Axis = Annotated[str, _one_of("axis", AXES)]
Mode = Annotated[str, _one_of("mode", MODES)]
Engine = Annotated[str, _one_of("engine", ENGINES)]
Topology = Annotated[str, StringConstraints(pattern=r"^dp[1-9][0-9]{0,3}$")]
Size = Annotated[str, _one_of("size", SIZES)]
Dtype = Annotated[str, _one_of("dtype", DTYPES)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Settings = dict[str, Any]


class HardwareEntry(Strict):
    """One kind of machine that a cell can name."""

    platform: Text = Field(description="who drives it; the harness probes platforms, not names")
    description: Text
    devices_per_node: int = Field(default=1, ge=1, description="how many devices a cell may ask of one machine")


class ModelEntry(Strict):
    """One model family, with what stands under `model` in the subject's settings for each size it comes in.

    A variant `extends` another entry: it has that one's sizes and settings, and its own settings above them.
    """

    description: Text
    extends: Name | None = None
    sizes: dict[Size, Settings] = Field(default_factory=dict)
    settings: Settings = Field(default_factory=dict, description="what the model asks of the rest of the cell")

    @model_validator(mode="after")
    def _has_sizes(self) -> ModelEntry:
        if bool(self.sizes) == (self.extends is not None):
            raise ValueError('has either "sizes" of its own or "extends" another model; give one of them')
        return self


class AlgorithmEntry(Strict):
    """One algorithm: what it adds to the subject's settings."""

    description: Text
    settings: Settings


class Defaults(Strict):
    """What the blocks and cells of a suite leave unsaid."""

    subject: Name = "reference"
    hardware: Name | None = None
    model: Name | None = None
    algorithm: Name | None = None
    mode: Mode = "sync"
    engine: Engine = "native"
    topology: Topology = "dp1"
    size: Size = "tiny"
    dtype: Dtype = "float32"
    settings: Settings = Field(default_factory=dict)


class Block(Strict):
    """Cells of a suite: every combination of the values named on the axes. One value a axis makes one cell."""

    subject: Name | None = None
    hardware: Some[Name] | None = None
    model: Some[Name] | None = None
    algorithm: Some[Name] | None = None
    mode: Some[Mode] | None = None
    engine: Some[Engine] | None = None
    topology: Some[Topology] | None = None
    size: Size | None = None
    dtype: Dtype | None = None
    settings: Settings = Field(default_factory=dict)


Match = Annotated[dict[Axis, Some[Text]], Field(min_length=1)]


class ExcludeRule(Strict):
    """Combinations that the suite leaves out, and why."""

    match: Match
    reason: Text


class LearnRule(Strict):
    """Cells that must learn: over `seeds`, greedy reward after `steps` steps minus before, tested one-sided."""

    match: Match
    seeds: Annotated[Some[Seed], Field(min_length=3)]
    confidence: float = Field(gt=0.5, lt=1.0, description="of the lower bound on the mean gain")
    steps: int = Field(ge=1)
    min_gain: float = Field(default=0.0, ge=0.0, description="the bound must lie above this much reward")

    @model_validator(mode="after")
    def _distinct_seeds(self) -> LearnRule:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a seed given twice proves nothing twice; give distinct seeds")
        return self


class SuiteLimits(Strict):
    """What a cell of the suite may use before it is ended, where that differs from the executor's own limits."""

    process_gib: float | None = Field(default=None, gt=0, description="private memory of each process")
    group_gib: float | None = Field(default=None, gt=0, description="memory of all processes of a cell, polled")
    time_scale: float | None = Field(default=None, gt=0, description="stretches the time-out of every case")


class SuiteSpec(Strict):
    """One suite file."""

    suite: Name
    description: Text
    include: Many[Text] = ()
    defaults: Defaults = Defaults()
    combine: Many[Block] = ()
    cells: Many[Block] = ()
    exclude: Many[ExcludeRule] = ()
    learn: Many[LearnRule] = ()
    limits: SuiteLimits = SuiteLimits()
