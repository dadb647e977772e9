"""What one run writes down: `run.json` (`RunHeader`) and the lines of `results.jsonl` (`Record`). Versioned.

A record is written once and never changed. Unknown keys are kept out, so that a foreign or damaged line is noticed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from harness.results.vocabulary import Evidence, FailureClass, Flag, Outcome, PlanState

SCHEMA_VERSION = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class PlannedCase(_Frozen):
    """One case as the plan sees it in one cell."""

    case: str = Field(description="case id, `layer.slug`")
    state: PlanState
    reason: str = Field(default="", description="why it does not apply, or which cell it is shared with")
    shared_with: str | None = Field(default=None, description="id of the cell that runs it for this one")
    also_shared_with: tuple[str, ...] = Field(
        default=(), description="further cells that do, where one covers this cell's model and another its algorithm"
    )


class PlannedCell(_Frozen):
    """One cell that was asked for, whether or not it can run."""

    cell: str
    subject: str
    axes: dict[str, str] = Field(description="hardware, model, algorithm, mode, engine, topology")
    size: str
    dtype: str
    devices: int = 1
    evidence: Evidence | None = Field(description="best evidence this machine can give; None when it can give none")
    reason: str = Field(default="", description="why there is no better evidence, or none")
    cases: tuple[PlannedCase, ...] = ()


class Exclusion(_Frozen):
    """A combination that the suite leaves out, and why."""

    cell: str
    reason: str


class Machine(_Frozen):
    """Where a run happened. `machine_class` keys a series: numbers of different classes are never compared."""

    machine_class: str = Field(description="CPU model, core count and accelerators, as one short key")
    hostname: str
    cores: int
    memory_bytes: int
    cpu_capability: str = Field(description="torch's dispatch level, e.g. AVX512: bit-equality holds within one")
    system: str


class RunHeader(_Frozen):
    """`run.json`: written before anything runs, so that even a killed run says what it meant to do."""

    schema_version: int = SCHEMA_VERSION
    run_id: str = Field(description="unique, sortable by time")
    suite: str
    profile: str = Field(description="pr (derandomised), nightly (explores) or weekly")
    started: str = Field(description="UTC, ISO 8601")
    command: list[str]
    commit: str = Field(
        description="of the project, `+dirty` appended when the tree had changes, `unknown` outside git"
    )
    versions: dict[str, str] = Field(description="python, torch, transformers … as imported")
    machine: Machine
    workers: int
    threads_per_worker: int
    seed: int
    mutant: str | None = None
    reproduction: bool = Field(default=False, description="judged a given input, seed or number: it closes no failure")
    planned: tuple[PlannedCell, ...]
    excluded: tuple[Exclusion, ...] = ()


class CaseRecord(_Frozen):
    """How one case in one cell ended, and how to see it again."""

    kind: Literal["case"] = "case"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    cell: str
    subject: str
    case: str
    size: str
    dtype: str
    evidence: Evidence
    outcome: Outcome
    failure_class: FailureClass | None = None
    by_assertion: bool = Field(default=False, description="the case's own assertion failed, not an error on the way")
    flags: tuple[Flag, ...] = ()
    message: str = Field(default="", description="one paragraph: what was expected and what was seen")
    detail: str = Field(default="", description="traceback or last output, for whoever digs")
    seed: int
    examples: int = Field(default=0, description="inputs that the case judged")
    discarded: int = Field(default=0, description="inputs that were drawn and did not fit")
    seconds: float = Field(default=0.0, allow_inf_nan=False, description="inside the case")
    overhead_seconds: float = Field(default=0.0, allow_inf_nan=False, description="around it, in the harness")
    attempt: int = 1
    shrunk_input: dict[str, Any] | None = None
    reproduce: str = Field(default="", description="one shell line that shows the failure alone")
    mutant: str | None = None
    mutant_hits: int | None = Field(default=None, description="how often the mutant's code ran, in all processes")
    peak_bytes: int | None = Field(default=None, description="peak resident bytes of the cell's process group, polled")
    started: str = ""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    notes: dict[str, Any] = Field(default_factory=dict, description="fingerprints, tests and their seeds")


class StepRecord(_Frozen):
    """One training step of one cell under one seed."""

    kind: Literal["step"] = "step"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    cell: str
    case: str = Field(description="the case that trained")
    size: str
    dtype: str
    evidence: Evidence
    seed: int
    step: int
    metrics: dict[str, float | None] = Field(description="by name; None says the step could not measure it")


class EndRecord(_Frozen):
    """The run reached its end. A bundle without it was cut short."""

    kind: Literal["end"] = "end"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    finished: str
    exit_code: int


Record = Annotated[CaseRecord | StepRecord | EndRecord, Field(discriminator="kind")]
RECORD: TypeAdapter[Record] = TypeAdapter(Record)
