"""Bringing a database's schema up to date, once, whichever of many servers comes first."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from penstock.core.ids import new_salt
from penstock.core.sql_files import Migration, load_migrations
from penstock.errors import CannotOpen, Damaged, SchemaTooNew
from penstock.postgres.context import in_schema

MIGRATIONS = load_migrations("penstock.postgres")
SCHEMA_VERSION = MIGRATIONS[-1].version
MIGRATING = 1346720332
"""The lock under which schemas are changed; with the schema's name hashed."""

JOURNAL = "!journal"
"""The stream that is the journal: no stream of a user's can have that name."""

Connection = psycopg.Connection[tuple[Any, ...]]


def migrate(connection: Connection, schema: str, *, unfinished: bool = False) -> int:
    """Apply what is missing; answers the schema's salt. What a move to it has not finished is for that move alone."""
    if schema_version(connection, schema) < SCHEMA_VERSION:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (MIGRATING, schema))
            _apply_missing(connection, schema)
    row = connection.execute(_named("SELECT value FROM {}.setting WHERE name = 'salt'", schema)).fetchone()
    assert row is not None
    begun = _named("SELECT 1 FROM {}.setting WHERE name = 'unfinished'", schema)
    if not unfinished and connection.execute(begun).fetchone():
        raise CannotOpen("a move to this database was not finished", hint="run the same `penstock migrate-store` again")
    return int(row[0])


def has_journal(connection: Connection, schema: str) -> bool:
    row = connection.execute(_named("SELECT value FROM {}.setting WHERE name = 'journal'", schema)).fetchone()
    return bool(row and row[0])


def _named(text: str, schema: str) -> sql.Composed:
    return sql.SQL(text).format(sql.Identifier(schema))


def schema_version(connection: Connection, schema: str) -> int:
    """0 for a database that holds no Penstock tables yet; one from a newer release is refused."""
    # Not to_regclass: what it found before the lock was waited for, it may remember.
    known = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'migration'"
    if connection.execute(known, (schema,)).fetchone() is None:
        return 0
    applied = connection.execute(
        _named("SELECT version, checksum FROM {}.migration ORDER BY version", schema)
    ).fetchall()
    newest: int = applied[-1][0] if applied else 0
    if newest > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"the schema {schema!r} is version {newest}, and this Penstock knows {SCHEMA_VERSION}",
            hint="use the newer Penstock that wrote it",
        )
    for (version, checksum), migration in zip(applied, MIGRATIONS, strict=False):
        if (version, checksum) != (migration.version, migration.checksum):
            raise Damaged(
                f"migration {version} of this database is not the one that this Penstock knows",
                hint="use the Penstock that wrote it, or restore a backup",
            )
    return newest


def _apply_missing(connection: Connection, schema: str) -> None:
    # Asked again under the lock: another may have done it meanwhile.
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
        _named("INSERT INTO {}.setting VALUES ('salt', %s) ON CONFLICT DO NOTHING", schema), (new_salt(),)
    )


def _apply(connection: Connection, migration: Migration, schema: str) -> None:
    connection.execute(in_schema(migration.sql, schema).encode(), prepare=False)
    connection.execute(
        _named("INSERT INTO {}.migration (version, name, checksum) VALUES (%s, %s, %s)", schema),
        (migration.version, migration.name, migration.checksum),
    )
