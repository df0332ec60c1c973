"""Migrates the schema of a file, exactly once even if many processes start together."""

from __future__ import annotations

import sqlite3

from penstock.core.ids import new_store_id
from penstock.core.sql_files import Migration, load_migrations
from penstock.errors import CannotOpen, Damaged, SchemaTooNew
from penstock.store.sqlite.connection import retry_while_busy

MIGRATIONS = load_migrations("penstock.store.sqlite")
SCHEMA_VERSION = MIGRATIONS[-1].version

_MIGRATION_TABLE = """
CREATE TABLE IF NOT EXISTS penstock_migration (
  version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
) STRICT"""


def migrate(connection: sqlite3.Connection, now: int, busy_ms: int, *, unfinished: bool = False) -> int:
    """Apply missing migrations and return the store id.

    Raises an error for the target of an unfinished `migrate-store`, unless that command passes `unfinished`.
    """
    if schema_version(connection) < SCHEMA_VERSION:
        retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), busy_ms)
        try:
            _apply_missing(connection, now)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    (store_id,) = connection.execute("SELECT value FROM penstock_setting WHERE name = 'salt'").fetchone()
    if not unfinished and connection.execute("SELECT 1 FROM penstock_setting WHERE name = 'unfinished'").fetchone():
        raise CannotOpen(
            "a migration to this file was not finished", hint="run the same `penstock migrate-store` again"
        )
    return int(store_id)


def has_journal(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT value FROM penstock_setting WHERE name = 'journal'").fetchone()
    return bool(row and row[0])


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the schema version, 0 without Penstock tables; raise an error for that of a newer release."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'penstock_migration'").fetchone():
        return 0
    applied = connection.execute("SELECT version, checksum FROM penstock_migration ORDER BY version").fetchall()
    newest: int = applied[-1][0] if applied else 0
    if newest > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"the file has schema version {newest}, but this release supports at most {SCHEMA_VERSION}",
            hint="use the newer Penstock release that wrote it",
        )
    for (version, checksum), migration in zip(applied, MIGRATIONS, strict=False):
        if (version, checksum) != (migration.version, migration.checksum):
            raise Damaged(
                f"migration {version} of this file differs from the one in this release",
                hint="use the Penstock release that wrote it, or restore a backup",
            )
    return newest


def _apply_missing(connection: sqlite3.Connection, now: int) -> None:
    done = schema_version(connection)
    connection.execute(_MIGRATION_TABLE)
    for migration in MIGRATIONS:
        if migration.version > done:
            _apply(connection, migration, now)
    connection.execute("INSERT OR IGNORE INTO penstock_setting VALUES ('salt', ?)", (new_store_id(),))


def _apply(connection: sqlite3.Connection, migration: Migration, now: int) -> None:
    # executescript would commit first, but the migration and its record belong in one transaction.
    for statement in _statements(migration.sql):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO penstock_migration VALUES (?, ?, ?, ?)",
        (migration.version, migration.name, migration.checksum, now),
    )


def _statements(script: str) -> list[str]:
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
