"""API keys of queues and streams, stored hashed, and the secrets that messages are signed with."""

from __future__ import annotations

from penstock.core.commands import AddKey, Removed, RemoveKeys, SetSecret
from penstock.core.model import ApiKey
from penstock.core.sql_files import load_sql
from penstock.store.common import check_key_count
from penstock.store.sqlite.transaction import SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "access")


def add_key(tx: SqliteTransaction, command: AddKey) -> ApiKey:
    kind, owner = _owner(tx, command)
    check_key_count(command, *tx.execute(SQL[f"count_{kind}_keys"], (owner,)).fetchone())
    rights = ",".join(command.rights)
    tx.execute(SQL[f"add_{kind}_key"], (command.id, owner, command.name, command.hash, rights, tx.now))
    return ApiKey(command.id, command.queue, command.name, command.hash, list(command.rights), tx.now, command.stream)


def remove_keys(tx: SqliteTransaction, command: RemoveKeys) -> Removed:
    kind, owner = _owner(tx, command)
    return Removed(tx.execute(SQL[f"remove_{kind}_keys"], (owner, command.id)).rowcount)


def _owner(tx: SqliteTransaction, command: AddKey | RemoveKeys) -> tuple[str, int | str | None]:
    """Return the kind of the owner, which is part of the names of the statements, and its key in their tables."""
    return ("stream", command.stream) if command.queue is None else ("queue", tx.queue(command.queue).id)


def set_secret(tx: SqliteTransaction, command: SetSecret) -> None:
    tx.execute(SQL["set_secret"], (command.secret, tx.queue(command.queue).id))
