"""Connections to a store: finding out whether a database is one, locking, and failures told in a sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, NoSuchModuleError, ProgrammingError
from sqlalchemy.pool import ConnectionPoolEntry

from harness.errors import RequestError
from harness.results.store_schema import STORE_VERSION, metadata, schema

_BUSY_MILLISECONDS = 60_000  # a writer waits this long for another one
_NAME_ANOTHER = "name a store that `rl-gauntlet ingest` wrote, or a new file for it to write"


class Database:
    """A database that is known to be a store."""

    def __init__(self, target: str, *, create: bool) -> None:
        url = _url(target)
        self._is_sqlite = url.get_backend_name() == "sqlite"
        if self._is_sqlite and url.database == ":memory:":
            raise RequestError(f'the store "{target}" would be gone with this command; name a file')
        if self._is_sqlite:
            _check_file(url, create=create)
        self.name = url.render_as_string(hide_password=True) if "://" in target else target
        try:
            self._engine = sa.create_engine(url)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise RequestError(
                f'no driver for the store "{self.name}": {error}; for PostgreSQL install rl-gauntlet[postgres] and '
                "write postgresql+psycopg://…"
            ) from None
        except (TypeError, ValueError) as error:  # an option behind the question mark
            raise RequestError(f'the store "{self.name}" cannot be opened: {error}; mend the URL') from None
        if self._is_sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        self._check_schema(create=create)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._failures_told(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction; on SQLite it holds the write lock from its start, so that two writers never deadlock."""
        with (
            self._failures_told(),
            self._engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except (IntegrityError, ProgrammingError):
            raise  # ours, not the database's
        except OverflowError:
            raise RequestError(
                f'the store "{self.name}" keeps integers of 64 bits and a record holds a larger one; mend the bundle'
            ) from None
        except DatabaseError as error:
            reason = str(error.orig).strip().splitlines()[0]
            raise RequestError(f'the store "{self.name}" cannot be used: {reason}; {_NAME_ANOTHER}') from error

    def _check_schema(self, *, create: bool) -> None:
        with self.reading() as connection:
            version = self._version(connection, create=create)
        if version is None:
            self._let_readers_and_a_writer_work_side_by_side()
            with self.writing() as connection:
                if self._version(connection, create=create) is None:  # another process may have been quicker
                    metadata.create_all(connection)
                    connection.execute(sa.insert(schema).values(version=STORE_VERSION))
                version = STORE_VERSION
        if version > STORE_VERSION:
            raise RequestError(
                f'the store "{self.name}" has schema version {version}, and this rl-gauntlet reads up to '
                f"{STORE_VERSION}; upgrade rl-gauntlet"
            )

    def _let_readers_and_a_writer_work_side_by_side(self) -> None:
        if self._is_sqlite:
            # Locked: another process is creating the store, so it has asked for the same, which the file keeps.
            with closing(self._engine.raw_connection()) as connection, suppress(sqlite3.OperationalError):
                connection.cursor().execute("PRAGMA journal_mode = WAL")

    def _version(self, connection: sa.Connection, *, create: bool) -> int | None:
        tables = sa.inspect(connection).get_table_names()
        if schema.name in tables:
            version = connection.scalar(sa.select(schema.c.version))
            if version is not None:
                return version
        elif not tables and create:
            return None
        found = f"its tables are {', '.join(sorted(tables)[:5])}" if tables else "it is empty"
        raise RequestError(f'"{self.name}" is not a store of rl-gauntlet: {found}; {_NAME_ANOTHER}')


def _url(target: str) -> sa.URL:
    if "://" not in target:
        return sa.URL.create("sqlite", database=target)
    try:
        return sa.make_url(target)
    except (ArgumentError, ValueError):
        raise RequestError(
            f'"{target}" is not a database URL; write sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME'
        ) from None


def _check_file(url: sa.URL, *, create: bool) -> None:
    if not url.database:
        raise RequestError(f'the store "{url}" names no file; write sqlite:///FILE')
    path = Path(url.database)
    if path.is_dir():
        raise RequestError(f'the store "{path}" is a folder; {_NAME_ANOTHER}')
    if path.exists():
        return
    if not create:
        raise RequestError(f'there is no store at "{path}"; write one with `rl-gauntlet ingest BUNDLE --store {path}`')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f'cannot create the store "{path}": {error.strerror}; {_NAME_ANOTHER}') from error


def _prepare_sqlite(connection: sa.engine.interfaces.DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own: `_begin_sqlite` does
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
