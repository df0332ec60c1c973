"""Copies tables of the lake into PostgreSQL, where every BI tool can read them.

Delta describes a change of a table as files that were removed and files that were added. So the only state of a copy is
the version that it shows: the rows of the removed files are deleted, those of the added files are inserted, and the
version moves, all in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, LiteralString

import msgspec
import psycopg
import pyarrow as pa
from msgspec import Struct
from psycopg import sql

from penstock.errors import CannotOpen, Conflict
from penstock.pipeline.lake.changes import changes_since, digest_of
from penstock.pipeline.lake.tables import Table
from penstock.postgres.connection import SCHEMA, DatabaseTarget, connect, translate

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from penstock.pipeline.lake.lake import LakeTable

DEFAULT_SCHEMA = "penstock_lake"
VERSIONS = "published_version"
BUSY_MS = 30_000
BATCH_ROWS = 10_000
_TYPES: dict[pa.DataType, LiteralString] = {
    pa.int64(): "bigint",
    pa.int32(): "integer",
    pa.float64(): "double precision",
    pa.bool_(): "boolean",
    pa.string(): "text",
}
# An odd number of backslashes: with an even number, the text itself has a backslash and `u0000`.
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_LOCK: LiteralString = "SELECT pg_advisory_xact_lock(hashtextextended({}, 0))"
_CREATE_VERSIONS: LiteralString = """
CREATE TABLE IF NOT EXISTS {} (
  name text PRIMARY KEY, table_id text NOT NULL, version bigint NOT NULL, digest text NOT NULL,
  published_at timestamptz NOT NULL
)"""
_COLUMNS: LiteralString = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = {} AND table_name = {}"
)
_SET_VERSION: LiteralString = """
INSERT INTO {} VALUES (%s, %s, %s, %s, clock_timestamp()) ON CONFLICT (name)
DO UPDATE SET version = excluded.version, digest = excluded.digest, published_at = excluded.published_at"""

Connection = psycopg.Connection[tuple[Any, ...]]


class Published(Struct, frozen=True, kw_only=True):
    table: str
    """The table in PostgreSQL."""
    version: int
    """The version of the Delta table that the copy now shows."""
    deleted: int
    inserted: int
    whole: bool
    """True if the whole table was copied, not only what had changed."""


class Publisher:
    """Writes copies of tables to one schema of a PostgreSQL database."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        self._target = DatabaseTarget(url, schema)
        self._schema = self._target.schema if self._target.schema != SCHEMA else DEFAULT_SCHEMA
        self._connection = connect(self._target, busy_ms=BUSY_MS)

    def publish(self, table: LakeTable) -> Published:
        """Bring the copy of a table up to date, in one transaction."""
        copy = _Copy(self._connection, self._schema, table.table)
        try:
            with self._connection.transaction():
                return copy.update(table)
        except psycopg.Error as error:
            raise translate(error, self._target) from error

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Copy:
    """The copy of one table, within a transaction."""

    def __init__(self, connection: Connection, schema: str, table: Table) -> None:
        self._connection = connection
        self._table = table
        self._schema = schema
        self.name = table.name.replace(".", "_")
        self._copy = sql.Identifier(schema, self.name)
        self._versions = sql.Identifier(schema, VERSIONS)
        # Sketches and bodies are of no use in a BI tool.
        self._fields = [field for field in table.schema if not pa.types.is_binary(field.type)]
        self._keys = [field for field in table.schema if field.name in table.keys]

    def update(self, table: LakeTable) -> Published:
        self._prepare()
        # Read after the copy is locked: another publisher may have shown a newer version meanwhile.
        table_id, version = str(table.refresh().delta.metadata().id), table.delta.version()
        shown, digest = self._shown_version(table_id), digest_of(table)
        if shown == (version, digest):
            return Published(table=self.name, version=version, deleted=0, inserted=0, whole=False)
        counts = None if shown is None else self._replace_changes(table, *shown)
        deleted, inserted = counts or self._replace_all(table)
        self._execute(_SET_VERSION, self._versions, values=(self.name, table_id, version, digest))
        return Published(table=self.name, version=version, deleted=deleted, inserted=inserted, whole=counts is None)

    def _prepare(self) -> None:
        """Lock the copies of this schema, and create what is missing."""
        self._execute(_LOCK, sql.Literal(self._versions.as_string()))
        schema = sql.Literal(self._schema)
        # Even with IF NOT EXISTS, it needs the right to create schemas.
        if self._execute("SELECT 1 FROM pg_namespace WHERE nspname = {}", schema).fetchone() is None:
            self._execute("CREATE SCHEMA {}", sql.Identifier(self._schema))
        self._execute(_CREATE_VERSIONS, self._versions)
        columns = {
            field.name: sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_type(field)))
            for field in self._fields
        }
        self._execute(
            "CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))",
            self._copy,
            _list(list(columns.values())),
            _names(self._keys),
        )
        there = {name for (name,) in self._execute(_COLUMNS, schema, sql.Literal(self.name))}
        # A later release may add columns. ALTER TABLE waits for readers, and they for it, even if it changes nothing.
        if missing := [sql.SQL("ADD COLUMN {}").format(columns[name]) for name in columns if name not in there]:
            self._execute("ALTER TABLE {} {}", self._copy, _list(missing))
        self._execute("COMMENT ON TABLE {} IS {}", self._copy, sql.Literal(self._table.about))

    def _shown_version(self, table_id: str) -> tuple[int, str] | None:
        """Return the version that the copy shows, and the digest of its files."""
        row = self._execute(
            "SELECT table_id, version, digest FROM {} WHERE name = {}", self._versions, sql.Literal(self.name)
        ).fetchone()
        if row is None:
            return None
        if row[0] != table_id:
            raise Conflict(
                f"{self._copy.as_string()} is a copy of another lake's table",
                hint="publish each lake to a schema of its own, or drop this one",
            )
        return int(row[1]), str(row[2])

    def _replace_changes(self, table: LakeTable, shown: int, digest: str) -> tuple[int, int] | None:
        """Replace what has changed since a version; None if that version can no longer be read."""
        old = sql.Identifier("removed_row")
        try:
            changes = changes_since(table, shown, digest)
            if changes is None:
                return None
            removed, added = changes
            with self._connection.transaction():
                self._execute(
                    "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA",
                    old,
                    _names(self._keys),
                    self._copy,
                )
                self._insert(old, removed, self._keys)
        except (CannotOpen, FileNotFoundError):
            return None  # Vacuum has deleted a file of that version.
        same = [sql.SQL("c.{0} = r.{0}").format(sql.Identifier(field.name)) for field in self._keys]
        deleted = self._execute(
            "DELETE FROM {} c USING {} r WHERE {}", self._copy, old, sql.SQL(" AND ").join(same)
        ).rowcount
        self._execute("DROP TABLE {}", old)
        return deleted, self._insert(self._copy, added, self._fields)

    def _replace_all(self, table: LakeTable) -> tuple[int, int]:
        # DELETE, not TRUNCATE, which would lock out readers until the commit.
        deleted = self._execute("DELETE FROM {}", self._copy).rowcount
        return deleted, self._insert(self._copy, table.dataset(), self._fields)

    def _insert(self, target: sql.Identifier, rows: ds.Dataset, fields: Sequence[pa.Field]) -> int:
        count = 0
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(target, _names(fields))
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in rows.to_batches(columns=[field.name for field in fields], batch_size=BATCH_ROWS):
                for row in zip(*(_values(column) for column in batch.columns), strict=True):
                    copy.write_row(row)
                count += batch.num_rows
        return count

    def _execute(
        self, statement: LiteralString, *parts: sql.Composable, values: Sequence[Any] | None = None
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(sql.SQL(statement).format(*parts), values)


def _type(field: pa.Field) -> LiteralString:
    return "timestamptz" if pa.types.is_timestamp(field.type) else _TYPES.get(field.type, "jsonb")


def _values(column: pa.Array) -> list[Any]:
    """Return the values as COPY takes them: nested ones as JSON, and texts without NUL, which PostgreSQL rejects."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_nested(column.type):
        values = [None if value is None else msgspec.json.encode(value).decode() for value in values]
        return [value and _ESCAPED_NUL.sub(r"\1\\ufffd", value) for value in values]
    if pa.types.is_string(column.type):
        return [value and value.replace("\0", "\ufffd") for value in values]
    return values


def _names(fields: Sequence[pa.Field]) -> sql.Composed:
    return _list([sql.Identifier(field.name) for field in fields])


def _list(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
