"""API keys of queues and streams, stored hashed, and the secrets that messages are signed with."""

from __future__ import annotations

from penstock.core.commands import AddKey, AddStreamKey, Removed, RemoveKey, RemoveStreamKeys, SetSecret
from penstock.core.model import ApiKey
from penstock.errors import Conflict
from penstock.store.postgres.transaction import PostgresTransaction

KEYS_MAX = 1_000


def add_key(tx: PostgresTransaction, command: AddKey) -> ApiKey:
    queue = tx.itself(command.queue)
    ((count,),) = tx.fetch("access.count_keys", queue.id)
    if count >= KEYS_MAX:
        raise Conflict(f"queue {queue.name!r} already has {KEYS_MAX} keys", hint="remove some")
    rights = ",".join(command.rights)
    tx.write("access.add_key", command.id, queue.id, command.name, bytes(command.hash), rights, tx.now)
    return ApiKey(command.id, queue.name, command.name, command.hash, list(command.rights), tx.now)


def remove_key(tx: PostgresTransaction, command: RemoveKey) -> Removed:
    return Removed(len(tx.fetch("access.remove_key", command.id, tx.itself(command.queue).id)))


def add_stream_key(tx: PostgresTransaction, command: AddStreamKey) -> ApiKey:
    ((count,),) = tx.fetch("access.count_stream_keys", command.stream)
    if count >= KEYS_MAX:
        raise Conflict(f"stream {command.stream!r} already has {KEYS_MAX} keys", hint="remove some")
    rights = ",".join(command.rights)
    row = (command.id, command.stream, command.name, bytes(command.hash), rights, tx.now)
    tx.write("access.add_stream_key", *row)
    return ApiKey(command.id, None, command.name, command.hash, list(command.rights), tx.now, command.stream)


def remove_stream_keys(tx: PostgresTransaction, command: RemoveStreamKeys) -> Removed:
    return Removed(len(tx.fetch("access.remove_stream_keys", command.stream, command.id)))


def set_secret(tx: PostgresTransaction, command: SetSecret) -> None:
    tx.write("access.set_secret", tx.itself(command.queue).id, command.secret)
