"""Heartbeats of workers, and the worker list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.commands import Beat, Beaten
from penstock.core.model import Presence, WorkerInfo
from penstock.journal.recording import record_worker
from penstock.postgres.pipeline import ints, texts
from penstock.store import workers
from penstock.store.postgres.queries import PostgresQueries
from penstock.store.postgres.transaction import PostgresTransaction


def beat(tx: PostgresTransaction, command: Beat) -> Beaten:
    gone, present = workers.each_once(command.gone), workers.each_once(command.present)
    disconnected = _leave(tx, gone)
    known = {(kind, name): started_at for kind, name, started_at in tx.fetch("worker.known", *_keys(_of(present)))}
    if len(known) < len(present):
        ((listed,),) = tx.fetch("worker.count")
        present = workers.admitted(present, known, listed)
    connected = []
    for kind, name, added in _renew(tx, present, command.stale_ms):
        if added:
            connected.append((kind, name))
    for each in present:
        if each.kind == "server" and each.started_at > known.get((each.kind, each.name), each.started_at):
            # A new process with the same name replaced the old one.
            disconnected.append((each.kind, each.name))
            connected.append((each.kind, each.name))
    disconnected += _forget_silent(tx)
    _record(tx, connected, disconnected)
    return Beaten([name for _, name in connected], [name for _, name in disconnected])


def _of(present: Iterable[Presence]) -> list[workers.Key]:
    return [(each.kind, each.name) for each in present]


def _keys(keys: Sequence[workers.Key]) -> tuple[bytes, bytes]:
    return texts([kind for kind, _ in keys]), texts([name for _, name in keys])


def _renew(tx: PostgresTransaction, present: Sequence[Presence], stale_ms: int) -> list[tuple[str, str, bool]]:
    if not present:
        return []
    rows = tx.fetch(
        "worker.beat",
        tx.now,
        tx.now + stale_ms,
        *_keys(_of(present)),
        texts([each.host for each in present]),
        ints(each.pid or 0 for each in present),
        texts([each.version for each in present]),
        texts([each.server for each in present]),
        ints(each.started_at or tx.now for each in present),
        texts([workers.queues_text(each) for each in present]),
    )
    return [(kind, name, added) for kind, name, added in rows]


def _leave(tx: PostgresTransaction, gone: Sequence[Presence]) -> list[workers.Key]:
    if not gone:
        return []
    return [
        (kind, name)
        for kind, name in tx.fetch("worker.leave", *_keys(_of(gone)), ints(each.started_at for each in gone))
    ]


def _forget_silent(tx: PostgresTransaction) -> list[workers.Key]:
    stale = [(kind, name, at) for kind, name, at in tx.fetch("worker.stale", tx.now, workers.STALE_AT_ONCE)]
    if not stale:
        return []
    holders: dict[str | None, int] = dict(tx.fetch("worker.holders", tx.now, workers.LEASES_MET))
    gone = workers.silent_workers(stale, holders, tx.now)
    if gone:
        tx.write("worker.forget", *_keys(gone))
    return gone


def _record(tx: PostgresTransaction, connected: Sequence[workers.Key], disconnected: Sequence[workers.Key]) -> None:
    if not connected and not disconnected:
        return
    ((journals,),) = tx.fetch("worker.journals")
    if journals:
        for kind, name in disconnected:
            record_worker(tx, "disconnected", kind, name)
        for kind, name in connected:
            record_worker(tx, "connected", kind, name)


def list_workers(reader: PostgresQueries, after: str | None, limit: int) -> list[WorkerInfo]:
    rows = reader.fetch("worker.list", *workers.after_key(after), limit)
    held = reader.fetch("worker.held", workers.LEASES_SHOWN) if rows else []
    return list(workers.shown(rows, [(name, queue, count) for name, queue, count in held]))
