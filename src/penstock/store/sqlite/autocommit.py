"""Runs a push, lease or ack of one plain message as a single statement that commits itself.

In a transaction most of the cost would be around the command: begin, check for other writers, write counters, commit.
Here the statement itself checks that this process is still the last writer of the file, and has no effect otherwise.
Triggers do the two parts of a push with a request key and the parts of an ack. Each function returns None if the
command needs a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from penstock.core.commands import Ack, Command, Lease, Leased, Push, PushOutcome, Settled, SettledAll
from penstock.core.ids import ID_MAX
from penstock.core.latency import SERVICE, TOTAL, WAIT
from penstock.core.model import Content, PushReceipt
from penstock.core.sql_files import load_sql
from penstock.journal.events import Kind
from penstock.journal.recording import record_leased_plain, record_pushed
from penstock.store.common import CONTENT_CODES, new_token
from penstock.store.request_dedup import REQUEST_KEY, REQUEST_WINDOW_MS
from penstock.store.sqlite.lease import PLAIN, plain_deliveries
from penstock.store.sqlite.transaction import FORGET_EVERY, SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "autocommit")
PUSH, PUSH_ONCE, LEASE, ACK = SQL["push"], SQL["push_once"], SQL["lease"], SQL["ack"]
OK = Settled.OK
NO_JOURNAL_ROW = (0, 0, None)


def create_triggers(connection: sqlite3.Connection) -> None:
    """Create the temporary triggers on this connection; the schema of the file does not change."""
    connection.executescript(SQL["triggers"])


def push_autocommit(tx: SqliteTransaction, command: Push) -> PushOutcome | None:
    queue = tx.ahead(command.queue)
    if queue is None or len(command.messages) != 1 or tx.last_id < 0:
        return None
    message, options = command.messages[0], queue.options
    if message.priority or message.key is not None or message.headers is not None or message.ttl_ms is not None:
        return None
    if options.ttl_ms is not None or options.max_size is not None or options.push_rate is not None:
        return None
    if options.delay_ms if message.delay_ms is None else message.delay_ms:
        return None
    now, payload = tx.now, message.payload
    if not queue.may_push_uncounted(now) or not tx.journal.can_wait(queue.id, len(payload)):
        return None
    message_id = tx.last_id + 1
    queue.check_new_ids(message_id, 1)
    content = 0 if message.content is Content.BYTES else CONTENT_CODES[message.content]
    row_key = queue.plain_start | message_id
    if command.request_key is None:
        if not tx.execute(PUSH, (row_key, now, content, payload, tx.writer)).rowcount:
            return None
    else:
        # A repeated request violates the primary key, and the transaction that follows finds its first result.
        once = (0 if command.global_keys else queue.id, REQUEST_KEY + command.request_key, message_id)
        before = tx.connection.total_changes
        tx.execute(PUSH_ONCE, (row_key, now, content, payload, *once, now + REQUEST_WINDOW_MS, tx.writer))
        if tx.connection.total_changes == before:
            return None
    row = (row_key, now, None, 0, content, None, None, payload)
    queue.only = None if queue.ready else row
    tx.last_id = queue.last_id = message_id
    queue.newest_at = now
    queue.ready += 1
    queue.n_pushed += 1
    queue.uncounted_pushes += 1
    tx.defer_counts(queue)
    if queue.is_journalled:
        record_pushed(tx, queue, [row])
    return PushOutcome([PushReceipt(message_id, now, tx.store_id)])


def lease_autocommit(tx: SqliteTransaction, command: Lease) -> Leased | None:
    queue = None if command.queue is None else tx.ahead(command.queue)
    if queue is None or command.limit != 1 or queue.has_indexed_rows or queue.paused or not queue.ready:
        return None
    now, options = tx.now, queue.options
    if options.max_in_flight is not None or options.window_ms:
        return None
    if queue.leased and tx.lease_checks.is_due(queue.id, now):
        return None
    if not queue.may_lease_uncounted(now) or not tx.journal.can_wait(queue.id):
        return None
    row, queue.only = queue.only, None
    if row is None or queue.ready > 1 or row[0] != queue.plain_start | queue.last_id:
        row = tx.execute(PLAIN, (queue.cursor, queue.plain_end, 1)).fetchone()
        if row is None:
            return None
    row_key: int = row[0]
    queue.check_next(row_key)
    message_id, worker = row_key & ID_MAX, command.worker
    until = now + (options.lease_ms if command.lease_ms is None else command.lease_ms)
    token = new_token(until)
    lease = (message_id, row_key, queue.id, token, now, until, now, worker, tx.writer)
    if not tx.execute(LEASE, lease).rowcount:
        return None
    tx.remember(message_id, (until, token, now, row[1]))
    queue.count_leased(row_key, 1, until)
    queue.uncounted_leases += 1
    tx.defer_counts(queue)
    tx.latencies.add_one(queue.id, WAIT, now - row[1])
    if queue.is_journalled:
        record_leased_plain(tx, queue, [message_id], [row[1]], until, worker)
    return Leased(plain_deliveries([row], queue.name, tx.store_id, until, token.hex()))


def ack_autocommit(tx: SqliteTransaction, command: Ack) -> SettledAll | None:
    """Acknowledge a message that this process leased recently."""
    queue = tx.ahead(command.queue)
    if queue is None or len(command.items) != 1 or queue.options.archive_ms != 0 or tx.remembered >= FORGET_EVERY:
        return None
    item, now = command.items[0], tx.now
    message_id = item.id
    recent = tx.recent_leases.get(message_id)
    if recent is None or recent[0] <= now or item.token != recent[1].hex() or not queue.may_ack_alone(now):
        return None
    until, token, leased_at, pushed_at = recent
    del tx.recent_leases[message_id]
    queue.leased -= 1
    queue.n_acked += 1
    journal_row = None
    if queue.is_journalled:
        tx.journal.note(Kind.ACKED, queue, [(message_id, pushed_at, leased_at, leased_at, 0, 1, 0, 0)])
        journal_row = tx.next_journal_row()
    ended = (until, message_id, token, queue.plain_start | message_id)
    before = tx.connection.total_changes
    tx.execute(ACK, (*queue.counts(), *ended, *(journal_row or NO_JOURNAL_ROW), now // 60_000, tx.writer))
    if tx.connection.total_changes == before:
        tx.forget()
        return None
    tx.remembered += 1
    queue.all_counted()
    tx.latencies.add_one(queue.id, SERVICE, now - leased_at)
    tx.latencies.add_one(queue.id, TOTAL, now - pushed_at)
    return SettledAll([OK])


AutocommitHandler = Callable[[SqliteTransaction, Any], Any]
AUTOCOMMIT: dict[type[Command[Any]], AutocommitHandler] = {
    Push: push_autocommit,
    Lease: lease_autocommit,
    Ack: ack_autocommit,
}
