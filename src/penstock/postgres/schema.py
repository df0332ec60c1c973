"""Migrates the schema of a database, exactly once even if many servers start together."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from penstock.core.ids import new_store_id
from penstock.core.sql_files import Migration, load_migrations
from penstock.errors import CannotOpen, Damaged, SchemaTooNew
from penstock.postgres.context import in_schema

MIGRATIONS = load_migrations("penstock.postgres")
SCHEMA_VERSION = MIGRATIONS[-1].version
# Advisory lock of migrations, together with the hash of the schema name.
MIGRATING = 1346720332

# Name of the stream that holds the journal; not a valid name for other streams.
JOURNAL = "!journal"

Connection = psycopg.Connection[tuple[Any, ...]]


def migrate(connection: Connection, schema: str, *, unfinished: bool = False) -> int:
    """Apply missing migrations and return the store id.

    Raises an error for the target of an unfinished `migrate-store`, unless that command passes `unfinished`.
    """
    if schema_version(connection, schema) < SCHEMA_VERSION:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (MIGRATING, schema))
            _apply_missing(connection, schema)
    row = connection.execute(_named("SELECT value FROM {}.setting WHERE name = 'salt'", schema)).fetchone()
    assert row is not None
    begun = _named("SELECT 1 FROM {}.setting WHERE name = 'unfinished'", schema)
    if not unfinished and connection.execute(begun).fetchone():
        raise CannotOpen(
            "a migration to this database was not finished", hint="run the same `penstock migrate-store` again"
        )
    return int(row[0])


def has_journal(connection: Connection, schema: str) -> bool:
    row = connection.execute(_named("SELECT value FROM {}.setting WHERE name = 'journal'", schema)).fetchone()
    return bool(row and row[0])


def _named(text: str, schema: str) -> sql.Composed:
    return sql.SQL(text).format(sql.Identifier(schema))


def schema_version(connection: Connection, schema: str) -> int:
    """Return the schema version, 0 without Penstock tables; raise an error for that of a newer release."""
    # Not to_regclass, which may return a result cached before the lock was acquired.
    known = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'migration'"
    if connection.execute(known, (schema,)).fetchone() is None:
        return 0
    applied = connection.execute(
        _named("SELECT version, checksum FROM {}.migration ORDER BY version", schema)
    ).fetchall()
    newest: int = applied[-1][0] if applied else 0
    if newest > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"schema {schema!r} has version {newest}, but this release supports at most {SCHEMA_VERSION}",
            hint="use the newer Penstock release that wrote it",
        )
    for (version, checksum), migration in zip(applied, MIGRATIONS, strict=False):
        if (version, checksum) != (migration.version, migration.checksum):
            raise Damaged(
                f"migration {version} of this database differs from the one in this release",
                hint="use the Penstock release that wrote it, or restore a backup",
            )
    return newest


def _apply_missing(connection: Connection, schema: str) -> None:
    # Checked again under the lock: another server may have migrated meanwhile.
    done = schema_version(connection, schema)
    if not done:
        connection.execute(_named("CREATE SCHEMA IF NOT EXISTS {}", schema))
        connection.execute(
            _named(
                "CREATE TABLE {}.migration (version bigint PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, "
                "applied_at timestamptz NOT NULL DEFAULT now())",
                schema,
            )
        )
    for migration in MIGRATIONS:
        if migration.version > done:
            _apply(connection, migration, schema)
    connection.execute(
        _named("INSERT INTO {}.setting VALUES ('salt', %s) ON CONFLICT DO NOTHING", schema), (new_store_id(),)
    )


def _apply(connection: Connection, migration: Migration, schema: str) -> None:
    connection.execute(in_schema(migration.sql, schema).encode(), prepare=False)
    connection.execute(
        _named("INSERT INTO {}.migration (version, name, checksum) VALUES (%s, %s, %s)", schema),
        (migration.version, migration.name, migration.checksum),
    )
