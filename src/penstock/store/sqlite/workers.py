"""Heartbeats of workers, and the worker list."""

from __future__ import annotations

import sqlite3

from penstock.core.commands import Beat, Beaten
from penstock.core.model import Presence, WorkerInfo
from penstock.core.sql_files import load_sql
from penstock.journal.recording import record_worker
from penstock.store import workers
from penstock.store.sqlite.transaction import SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "worker")


def beat(tx: SqliteTransaction, command: Beat) -> Beaten:
    beaten = Beaten([], [])
    connected: list[workers.Key] = []
    disconnected = _leave(tx, workers.each_once(command.gone))
    known: dict[workers.Key, int] = {}
    present = workers.each_once(command.present)
    for each in present:
        row = tx.execute(SQL["known"], (each.kind, each.name)).fetchone()
        if row is not None:
            known[each.kind, each.name] = row[0]
    if len(known) < len(present):
        (listed,) = tx.execute(SQL["count"]).fetchone()
        present = workers.admitted(present, known, listed)
    for each in present:
        key, values = (each.kind, each.name), _values(tx, each, command.stale_ms)
        if key not in known:
            tx.execute(SQL["add"], values)
            connected.append(key)
        elif each.kind == "consumer" or each.started_at >= known[key]:
            tx.execute(SQL["renew"], values)
            if each.kind == "server" and each.started_at > known[key]:
                # A new process with the same name replaced the old one.
                disconnected.append(key)
                connected.append(key)
    disconnected += _forget_silent(tx)
    _record(tx, connected, disconnected)
    beaten.connected += [name for _, name in connected]
    beaten.disconnected += [name for _, name in disconnected]
    return beaten


def _values(tx: SqliteTransaction, each: Presence, stale_ms: int) -> tuple[object, ...]:
    started_at = each.started_at or tx.now
    whereabouts = (each.host, each.pid, each.version, each.server)
    return (each.kind, each.name, *whereabouts, started_at, tx.now, tx.now + stale_ms, workers.queues_text(each))


def _leave(tx: SqliteTransaction, gone: list[Presence]) -> list[workers.Key]:
    return [
        (each.kind, each.name)
        for each in gone
        if tx.execute(SQL["leave"], (each.kind, each.name, each.started_at)).rowcount
    ]


def _forget_silent(tx: SqliteTransaction) -> list[workers.Key]:
    stale = tx.execute(SQL["stale"], (tx.now, workers.STALE_AT_ONCE)).fetchall()
    if not stale:
        return []
    holders = dict(tx.execute(SQL["holders"], (tx.now, workers.LEASES_MET)).fetchall())
    gone = workers.silent_workers(stale, holders, tx.now)
    for key in gone:
        tx.execute(SQL["forget"], key)
    return gone


def _record(tx: SqliteTransaction, connected: list[workers.Key], disconnected: list[workers.Key]) -> None:
    if not connected and not disconnected:
        return
    row = tx.execute(SQL["journals"]).fetchone()
    if row is not None and row[0]:
        for kind, name in disconnected:
            record_worker(tx, "disconnected", kind, name)
        for kind, name in connected:
            record_worker(tx, "connected", kind, name)


def list_workers(connection: sqlite3.Connection, now: int, after: str | None, limit: int) -> list[WorkerInfo]:
    rows = connection.execute(SQL["list"], (*workers.after_key(after), limit)).fetchall()
    held = connection.execute(SQL["held"], (now, workers.LEASES_SHOWN)).fetchall() if rows else []
    return list(workers.shown(rows, held))
