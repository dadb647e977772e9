"""A bundle: the folder one run leaves, written so that a run killed at any moment keeps what it had.

`run.json` is in place before anything runs. `results.jsonl` grows by whole lines: each is one `write` under a lock on
the file, so any number of threads and processes may append, and a process that dies costs at most its own last line.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from harness.errors import RequestError, UserError
from harness.results.paths import RESULTS_FILE, RUN_FILE
from harness.results.records import RECORD, SCHEMA_VERSION, EndRecord, Record, RunHeader, StepRecord


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A line of `results.jsonl` that is not a record of this run."""

    line: int  # counted from 1
    why: str


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What one run left. `lines[i]` is the line of `records[i]`; a line is written once, so it names its record."""

    header: RunHeader
    records: tuple[Record, ...]
    lines: tuple[int, ...]
    damaged: tuple[Damage, ...] = ()

    @property
    def end(self) -> EndRecord | None:
        return next((record for record in self.records if isinstance(record, EndRecord)), None)

    @property
    def complete(self) -> bool:
        """The run reached its end; without that it was cut short or is still going."""
        return self.end is not None


class BundleWriter:
    """Appends records to a bundle. Holds no open file: it may be shared by threads, forked and pickled."""

    def __init__(self, folder: Path, header: RunHeader) -> None:
        """Create `folder` and its `run.json`. Raises `RequestError` when another run already lies there."""
        self.folder = folder
        self.run_id = header.run_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _create_durably(folder / RUN_FILE, header.model_dump_json(indent=2).encode())
        except FileExistsError:
            raise RequestError(
                f'"{folder}" already holds a run or is a file; name another folder for this one'
            ) from None
        except OSError as error:
            raise UserError(
                f'cannot create the bundle "{folder}": {error.strerror}; name a folder on another disk'
            ) from error

    def append(self, record: Record) -> None:
        """Add one record. Verdicts are on disk when this returns; a step is left to the system, for it costs a wait.

        Raises `UserError` when the line cannot be written whole, and leaves the file as it was.
        """
        path = self.folder / RESULTS_FILE
        try:
            _append_line(path, _encode(record), sync=not isinstance(record, StepRecord))
        except OSError as error:
            raise UserError(
                f'cannot append to "{path}": {error.strerror}; make room, then run again: what was recorded is kept'
            ) from error

    def finish(self, exit_code: int) -> None:
        """Say that the run reached its end."""
        self.append(
            EndRecord(run_id=self.run_id, finished=datetime.now(UTC).isoformat(timespec="seconds"), exit_code=exit_code)
        )


def read_bundle(folder: Path) -> Bundle:
    """Read what a run left, whole or not.

    Raises `RequestError` when `folder` is no bundle or was written by a newer version. Lines that are not records of
    this run, the torn last one of a killed run for example, are told in `damaged`.
    """
    header = _read_header(folder)
    try:
        lines = (folder / RESULTS_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        lines = []  # killed before its first record
    except OSError as error:
        raise RequestError(f'cannot read "{folder / RESULTS_FILE}": {error.strerror}; copy the bundle again') from error
    records: list[Record] = []
    numbers: list[int] = []
    damaged: list[Damage] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        torn = number == len(lines)  # every whole line ends in a newline, so what follows the last one was cut
        try:
            record = RECORD.validate_json(line)
        except ValidationError:
            damaged.append(Damage(line=number, why=_why_no_record(line, torn=torn)))
            continue
        if record.schema_version > SCHEMA_VERSION:
            damaged.append(Damage(line=number, why=_newer(record.schema_version)))
            continue
        if record.run_id != header.run_id:
            damaged.append(Damage(line=number, why=f'belongs to another run, "{record.run_id}"'))
            continue
        records.append(record)
        numbers.append(number)
    return Bundle(header=header, records=tuple(records), lines=tuple(numbers), damaged=tuple(damaged))


def _encode(record: Record) -> bytes:
    try:
        return record.model_dump_json().encode()
    except PydanticSerializationError:
        # The last output of a child may hold bytes that are no text; the record matters more than they do.
        return type(record).model_validate(_encodable(record.model_dump())).model_dump_json().encode()


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def _create_durably(path: Path, content: bytes) -> None:
    """Put `content` at `path` whole or not at all. Raises `FileExistsError` when there is something already."""
    if path.exists():
        raise FileExistsError
    draft = path.with_name(f"{path.name}.tmp")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _append_line(path: Path, line: bytes, *, sync: bool) -> None:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # let go by the close, or by the kernel when we are killed
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # whoever wrote last was killed on the way: their line must not swallow ours
        data = line + b"\n"
        try:
            written = os.write(fd, data)
            while written < len(data):  # a full disk takes a part, and raises at the next try
                written += os.write(fd, data[written:])
            if sync:
                os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def _read_header(folder: Path) -> RunHeader:
    path = folder / RUN_FILE
    remedy = "give the folder that `rl-gauntlet run` printed"
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "does not exist" if not folder.exists() else f"is not a bundle: it has no {RUN_FILE}"
        raise RequestError(f'"{folder}" {what}; {remedy}') from None
    except OSError as error:
        raise RequestError(f'cannot read "{path}": {error.strerror}; {remedy}') from error
    _refuse_newer(path, content)
    try:
        return RunHeader.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RequestError(f'"{path}" is not the header of a run: {where}: {first["msg"]}; {remedy}') from None


def _refuse_newer(path: Path, content: bytes) -> None:
    version = _schema_version(content)
    if version is not None and version > SCHEMA_VERSION:
        raise RequestError(f'"{path}" has {_newer(version)}; upgrade rl-gauntlet')


def _schema_version(content: bytes) -> int | None:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    version = parsed.get("schema_version") if isinstance(parsed, dict) else None
    return version if isinstance(version, int) else None


def _why_no_record(line: bytes, *, torn: bool) -> str:
    if torn:
        return "cut short: the run was killed while it wrote this line, or is writing it now"
    version = _schema_version(line)
    if version is not None and version > SCHEMA_VERSION:
        return _newer(version)
    return "not a record"


def _newer(version: int) -> str:
    return f"schema version {version}, and this rl-gauntlet reads up to {SCHEMA_VERSION}"
