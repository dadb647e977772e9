"""Tables of the store. A query needs no JSON: what is asked of results and steps has a column of its own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text

STORE_VERSION = 1

metadata = MetaData()

# One row. Its name tells a store from any other database.
schema = Table("rl_gauntlet_schema", metadata, Column("version", Integer, primary_key=True))

run = Table(
    "run",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("suite", String, nullable=False),
    Column("profile", String, nullable=False),
    Column("started", String, nullable=False, index=True, doc="UTC, ISO 8601 to the second: sorts by time"),
    Column("commit", String, nullable=False),
    Column("machine_class", String, nullable=False),
    Column("mutant", String),
    Column("reproduction", Boolean, nullable=False),
    Column("finished", String, doc="null while the run has no end"),
    Column("exit_code", Integer),
    Column("damaged", Text, nullable=False, doc="JSON: pairs of line and why"),
    Column("header", Text, nullable=False, doc="run.json"),
)

result = Table(
    "result",
    metadata,
    Column("run_id", ForeignKey("run.run_id"), primary_key=True),
    Column("line", Integer, primary_key=True, doc="in results.jsonl"),
    Column("cell", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("case", String, nullable=False),
    Column("size", String, nullable=False),
    Column("dtype", String, nullable=False),
    Column("evidence", String, nullable=False),
    Column("outcome", String, nullable=False),
    Column("failure_class", String),
    Column("attempt", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("overhead_seconds", Float, nullable=False),
    Column("peak_bytes", BigInteger),
    Column("record", Text, nullable=False, doc="the whole record, JSON"),
    Index("result_by_cell", "cell", "case"),
)

# Long form: one row a metric and step.
step_metric = Table(
    "step_metric",
    metadata,
    Column("run_id", ForeignKey("run.run_id"), primary_key=True),
    Column("line", Integer, primary_key=True, doc="in results.jsonl"),
    Column("name", String, primary_key=True),
    Column("cell", String, nullable=False),
    Column("case", String, nullable=False),
    Column("size", String, nullable=False),
    Column("dtype", String, nullable=False),
    Column("evidence", String, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("step", Integer, nullable=False),
    Column("value", Float, doc="null when it was not measured, or is not a number"),
    Column("is_nan", Boolean, nullable=False, doc="SQLite keeps a NaN as null"),
    Index("step_metric_by_cell", "cell", "name"),
)
