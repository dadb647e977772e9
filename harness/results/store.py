"""The store: many bundles in one database. A SQLite file by default, anything SQLAlchemy knows by URL.

A record is named by its run and its line in `results.jsonl`, which is written once: loading a bundle twice changes
nothing, and loading one that has grown adds its new lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import sqlalchemy as sa

from harness.errors import RequestError
from harness.results.bundle import Bundle, Damage
from harness.results.records import RECORD, CaseRecord, EndRecord, Record, RunHeader, StepRecord
from harness.results.store_connection import Database
from harness.results.store_schema import result, run, step_metric

_ROWS_PER_STATEMENT = 5_000


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What loading one bundle added to the store."""

    run_id: str
    new_run: bool
    results: int
    step_metrics: int


class Store:
    """Opened by file name or URL; a context manager. Every method raises `RequestError` when the database fails."""

    def __init__(self, target: str, *, create: bool = False) -> None:
        """Raises `RequestError` when `target` is not a store, or does not exist and `create` is false."""
        self._database = Database(target, create=create)
        self.name = self._database.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def ingest(self, bundle: Bundle) -> Loaded:
        """Add what the store does not have yet. Any number of processes may load at once.

        Raises `RequestError` when the store holds another run under the same id.
        """
        header = bundle.header
        row = _run_row(bundle)
        with self._database.writing() as connection:
            known = connection.execute(sa.select(run).where(run.c.run_id == header.run_id)).one_or_none()
            if known is None:
                connection.execute(sa.insert(run).values(row))
            elif known.header != row["header"]:
                raise RequestError(
                    f'the store "{self.name}" holds another run with the id "{header.run_id}", started {known.started} '
                    f"at commit {known.commit}; load one of the two into a store of its own"
                )
            elif known._asdict() != row and (bundle.complete or known.finished is None):
                connection.execute(sa.update(run).where(run.c.run_id == header.run_id).values(row))
            results, steps = self._new_rows(connection, bundle)
            for table, rows in ((result, results), (step_metric, steps)):
                for start in range(0, len(rows), _ROWS_PER_STATEMENT):
                    connection.execute(sa.insert(table), rows[start : start + _ROWS_PER_STATEMENT])
        return Loaded(run_id=header.run_id, new_run=known is None, results=len(results), step_metrics=len(steps))

    def run_ids(self, *, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """Ids of runs that started in [since, until), oldest first.

        Left out are mutants' runs, made to fail, and reproductions, whose one input closes no failure.
        """
        query = sa.select(run.c.run_id).where(run.c.mutant.is_(None), ~run.c.reproduction)
        query = query.order_by(run.c.started, run.c.run_id)
        if since is not None:
            query = query.where(run.c.started >= _second(since))
        if until is not None:
            query = query.where(run.c.started < _second(until))
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def bundle(self, run_id: str, *, steps: bool = True) -> Bundle:
        """Give a run back as its bundle was, without its step records when `steps` is false.

        Raises `RequestError` for an id that the store does not hold.
        """
        with self._database.reading() as connection:
            row = connection.execute(sa.select(run).where(run.c.run_id == run_id)).one_or_none()
            if row is None:
                raise RequestError(
                    f'the store "{self.name}" holds no run "{run_id}"; load it with `rl-gauntlet ingest`'
                )
            header = RunHeader.model_validate_json(row.header)
            numbered: dict[int, Record] = {
                line: RECORD.validate_json(text)
                for line, text in connection.execute(
                    sa.select(result.c.line, result.c.record).where(result.c.run_id == run_id)
                )
            }
            if steps:
                metrics = connection.execute(sa.select(step_metric).where(step_metric.c.run_id == run_id))
                numbered.update(_step_records(row._mapping for row in metrics))
        if row.finished is not None:
            last = max(numbered, default=0) + 1
            numbered[last] = EndRecord(run_id=run_id, finished=row.finished, exit_code=row.exit_code)
        lines = sorted(numbered)
        damaged = tuple(Damage(line=line, why=why) for line, why in json.loads(row.damaged))
        return Bundle(
            header=header, records=tuple(numbered[line] for line in lines), lines=tuple(lines), damaged=damaged
        )

    def runs_with_steps(self, cell: str, *, size: str, dtype: str, evidence: str | None) -> set[str]:
        """Ids of the runs that recorded training steps of a cell."""
        columns = step_metric.c
        query = sa.select(columns.run_id).distinct().where(columns.cell == cell)
        query = query.where(columns.size == size, columns.dtype == dtype, columns.evidence == evidence)
        with self._database.reading() as connection:
            return set(connection.scalars(query))

    def _new_rows(self, connection: sa.Connection, bundle: Bundle) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        run_id = bundle.header.run_id
        query = sa.select(result.c.line, result.c.record).where(result.c.run_id == run_id)
        stored = {row.line: row.record for row in connection.execute(query)}
        stored_steps = set(
            connection.scalars(sa.select(step_metric.c.line).where(step_metric.c.run_id == run_id).distinct())
        )
        results: list[dict[str, Any]] = []
        steps: list[dict[str, Any]] = []
        for line, record in zip(bundle.lines, bundle.records, strict=True):
            if isinstance(record, CaseRecord):
                row = _result_row(line, record)
                if line not in stored:
                    results.append(row)
                elif stored[line] != row["record"]:
                    raise RequestError(
                        f'line {line} of run "{run_id}" is not the one that the store "{self.name}" holds, and records '
                        "are written once; load the bundle as the run left it"
                    )
            elif isinstance(record, StepRecord) and line not in stored_steps:
                steps.extend(_step_rows(line, record))
        return results, steps


def as_utc(text: str) -> datetime:
    """Read an ISO 8601 time; one without an offset is UTC. Raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _second(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _run_row(bundle: Bundle) -> dict[str, Any]:
    header, end = bundle.header, bundle.end
    try:
        started = _second(as_utc(header.started))
    except ValueError:
        raise RequestError(
            f'run "{header.run_id}" says that it started "{header.started}", which is not ISO 8601; mend its run.json'
        ) from None
    return {
        "run_id": header.run_id,
        "suite": header.suite,
        "profile": header.profile,
        "started": started,
        "commit": header.commit,
        "machine_class": header.machine.machine_class,
        "mutant": header.mutant,
        "reproduction": header.reproduction,
        "finished": end.finished if end else None,
        "exit_code": end.exit_code if end else None,
        "damaged": json.dumps([[damage.line, damage.why] for damage in bundle.damaged]),
        "header": header.model_dump_json(),
    }


def _result_row(line: int, record: CaseRecord) -> dict[str, Any]:
    columns = {column.name for column in result.columns} - {"line", "record"}
    return {"line": line, "record": record.model_dump_json(), **record.model_dump(mode="json", include=columns)}


def _step_rows(line: int, record: StepRecord) -> Iterator[dict[str, Any]]:
    shared = record.model_dump(mode="json", exclude={"kind", "schema_version", "metrics"})
    for name, value in record.metrics.items():
        is_nan = value is not None and math.isnan(value)
        yield {"line": line, **shared, "name": name, "value": None if is_nan else value, "is_nan": is_nan}


def _step_records(rows: Iterator[Any]) -> dict[int, StepRecord]:
    shared: dict[int, dict[str, Any]] = {}
    metrics: dict[int, dict[str, float | None]] = {}
    for row in rows:
        if row["line"] not in shared:
            names = StepRecord.model_fields.keys() & row.keys()
            shared[row["line"]] = {name: row[name] for name in names}
        metrics.setdefault(row["line"], {})[row["name"]] = math.nan if row["is_nan"] else row["value"]
    return {line: StepRecord(**shared[line], metrics=metrics[line]) for line in shared}
