"""API keys of queues and streams, stored hashed, and the secrets that messages are signed with."""

from __future__ import annotations

from penstock.core.commands import AddKey, AddStreamKey, Removed, RemoveKey, RemoveStreamKeys, SetSecret
from penstock.core.model import ApiKey
from penstock.core.sql_files import load_sql
from penstock.errors import Conflict
from penstock.store.sqlite.transaction import SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "access")
KEYS_MAX = 1_000


def add_key(tx: SqliteTransaction, command: AddKey) -> ApiKey:
    queue = tx.queue(command.queue)
    (count,) = tx.execute("SELECT count(*) FROM penstock_api_key WHERE queue_id = ?", (queue.id,)).fetchone()
    if count >= KEYS_MAX:
        raise Conflict(f"queue {queue.name!r} already has {KEYS_MAX} keys", hint="remove some")
    rights = ",".join(command.rights)
    tx.execute(SQL["add_key"], (command.id, queue.id, command.name, command.hash, rights, tx.now))
    return ApiKey(command.id, queue.name, command.name, command.hash, list(command.rights), tx.now)


def remove_key(tx: SqliteTransaction, command: RemoveKey) -> Removed:
    queue = tx.queue(command.queue)
    return Removed(tx.execute(SQL["remove_key"], (command.id, queue.id)).rowcount)


def add_stream_key(tx: SqliteTransaction, command: AddStreamKey) -> ApiKey:
    (count,) = tx.execute("SELECT count(*) FROM penstock_stream_key WHERE stream = ?", (command.stream,)).fetchone()
    if count >= KEYS_MAX:
        raise Conflict(f"stream {command.stream!r} already has {KEYS_MAX} keys", hint="remove some")
    row = (command.id, command.stream, command.name, command.hash, ",".join(command.rights), tx.now)
    tx.execute(SQL["add_stream_key"], row)
    return ApiKey(command.id, None, command.name, command.hash, list(command.rights), tx.now, command.stream)


def remove_stream_keys(tx: SqliteTransaction, command: RemoveStreamKeys) -> Removed:
    return Removed(tx.execute(SQL["remove_stream_keys"], (command.stream, command.id)).rowcount)


def set_secret(tx: SqliteTransaction, command: SetSecret) -> None:
    tx.execute(SQL["set_secret"], (command.secret, tx.queue(command.queue).id))
