"""API keys of queues and streams, stored hashed, and the secrets that messages are signed with."""

from __future__ import annotations

from penstock.core.commands import AddKey, Removed, RemoveKeys, SetSecret
from penstock.core.model import ApiKey
from penstock.store.common import check_key_count
from penstock.store.postgres.transaction import PostgresTransaction


def add_key(tx: PostgresTransaction, command: AddKey) -> ApiKey:
    kind, owner = _owner(tx, command)
    check_key_count(command, *tx.fetch(f"access.count_{kind}_keys", owner)[0])
    rights = ",".join(command.rights)
    tx.write(f"access.add_{kind}_key", command.id, owner, command.name, bytes(command.hash), rights, tx.now)
    return ApiKey(command.id, command.queue, command.name, command.hash, list(command.rights), tx.now, command.stream)


def remove_keys(tx: PostgresTransaction, command: RemoveKeys) -> Removed:
    kind, owner = _owner(tx, command)
    return Removed(len(tx.fetch(f"access.remove_{kind}_keys", owner, command.id)))


def _owner(tx: PostgresTransaction, command: AddKey | RemoveKeys) -> tuple[str, int | str | None]:
    """Return the kind of the owner, which is part of the names of the statements, and its key in their tables."""
    return ("stream", command.stream) if command.queue is None else ("queue", tx.itself(command.queue).id)


def set_secret(tx: PostgresTransaction, command: SetSecret) -> None:
    tx.write("access.set_secret", tx.itself(command.queue).id, command.secret)
