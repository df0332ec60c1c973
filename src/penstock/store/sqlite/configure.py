"""Creates, changes, pauses and drops queues."""

from __future__ import annotations

from penstock.core.commands import Configure, ConfigureOutcome, Drop, Pause, Removed
from penstock.core.ids import QUEUE_SHIFT
from penstock.core.model import QueueOptions
from penstock.core.options import encode_options
from penstock.core.sql_files import load_sql
from penstock.errors import Conflict, QueueExists, QueueNotEmpty, UnknownQueue
from penstock.journal.recording import record_changed, record_dropped, record_queue
from penstock.store.common import GAUGES
from penstock.store.sqlite.queues import SqliteQueue
from penstock.store.sqlite.transaction import SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "admin")
QUEUES_MAX = 262_143


def create_queue(tx: SqliteTransaction, name: str, options: QueueOptions) -> SqliteQueue:
    (queue_id,) = tx.execute(SQL["free_queue_id"]).fetchone()
    if queue_id > QUEUES_MAX:
        raise Conflict(f"the file already has {QUEUES_MAX} queues", hint="drop some, or use another file")
    tx.execute(SQL["add_queue"], (queue_id, name, encode_options(options), tx.now))
    tx.execute(SQL["add_counter"], (queue_id, queue_id << QUEUE_SHIFT))
    queue = tx.queue(name)
    record_queue(tx, queue, "created", options=options)
    return queue


def configure(tx: SqliteTransaction, command: Configure) -> ConfigureOutcome:
    queue = tx.find(command.queue)
    if queue is None:
        if command.create is None:
            raise UnknownQueue(command.queue)
        queue = create_queue(tx, command.queue, command.create.changed(command.changes))
        return ConfigureOutcome(queue.info(), created=True, changed=True)
    if command.exact and command.create is not None:
        wanted = command.create.changed(command.changes)
        if differing := wanted.differing(queue.options):
            raise QueueExists(queue.name, differing)
        return ConfigureOutcome(queue.info(), created=False, changed=False)
    options = queue.options.changed(command.changes)
    changed = options != queue.options
    if changed:
        if options.journal != queue.options.journal and queue.pending_counts:
            # Record pending pushes now, under the journal option that was set when they were made.
            queue.write(tx.connection, tx.now)
        queue.stored_options = encode_options(options, queue.stored_options)
        tx.execute(SQL["set_options"], (queue.stored_options, queue.id))
        before, queue.options = queue.options, options
        record_changed(tx, queue, before, queue.info())
    return ConfigureOutcome(queue.info(), created=False, changed=changed)


def pause(tx: SqliteTransaction, command: Pause) -> ConfigureOutcome:
    queue = tx.queue(command.queue)
    changed = queue.paused != command.paused
    if changed:
        tx.execute(SQL["set_paused"], (int(command.paused), queue.id))
        queue.paused = command.paused
        record_queue(tx, queue, "paused" if command.paused else "resumed")
    return ConfigureOutcome(queue.info(), created=False, changed=changed)


def drop(tx: SqliteTransaction, command: Drop) -> Removed:
    queue = tx.queue(command.queue)
    tx.write_counters()
    found = queue.info()
    held = sum(getattr(found, state) for state in GAUGES)
    if held and not command.force:
        raise QueueNotEmpty(queue.name, held)
    lanes = (queue.plain_start, queue.plain_start + (1 << QUEUE_SHIFT) - 1)
    oldest_at = tx.execute(SQL["oldest_alive"], lanes).fetchone()[0] if queue.is_journalled else None
    tx.execute(SQL["forget_failures_between"], lanes)
    tx.execute("DELETE FROM penstock_message WHERE place BETWEEN ? AND ?", lanes)
    tx.execute(SQL["keep_last_id"], (queue.last_id,))
    tx.execute(SQL["keep_last_queue_id"], (queue.id,))
    for statement in SQL["forget_queue"].split(";\n"):
        tx.execute(statement, (queue.id,))
    record_dropped(tx, queue, held, found, oldest_at)
    tx.dropped(queue)
    return Removed(held)
