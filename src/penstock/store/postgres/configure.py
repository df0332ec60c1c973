"""Creates, changes, pauses and drops queues."""

from __future__ import annotations

from penstock.core.commands import Configure, ConfigureOutcome, Drop, Pause, Removed
from penstock.core.ids import QUEUE_SHIFT
from penstock.core.model import QueueInfo, QueueOptions
from penstock.core.options import encode_options
from penstock.errors import Conflict, QueueExists, QueueNotEmpty, UnknownQueue
from penstock.journal.recording import record_changed, record_dropped, record_queue
from penstock.postgres.pipeline import Restart
from penstock.store.common import GAUGES
from penstock.store.postgres.queues import PostgresQueue, is_limited
from penstock.store.postgres.transaction import CREATING, PostgresTransaction

QUEUES_MAX = 262_143


def create_queue(tx: PostgresTransaction, name: str, options: QueueOptions) -> PostgresQueue:
    lock = tx.context.lock_key(CREATING, 0)
    tx.write("admin.lock", lock)
    text = encode_options(options)
    # The journal may have been turned on or off while this transaction waited for the lock.
    ((queue_id, tx.journals),) = tx.fetch("admin.free_queue_id")
    if queue_id > QUEUES_MAX:
        raise Conflict(f"the database already has {QUEUES_MAX} queues", hint="drop some, or use another schema")
    added = tx.fetch("admin.add_queue", queue_id, name, text, is_limited(options), tx.now)
    if not added:
        raise Restart("another process created the queue meanwhile")
    tx.write("admin.add_counter", queue_id, queue_id << QUEUE_SHIFT)
    row = (name, queue_id, text, False, tx.now, queue_id << QUEUE_SHIFT, 0, None, None, None, 0, 0, tx.journals)
    queue = tx.created(row)
    record_queue(tx, queue, "created", options=options)
    return queue


def info(tx: PostgresTransaction, queue: PostgresQueue) -> QueueInfo:
    tx.write_counters()
    return queue.info(tx.fetch("counter.sums", queue.id)[0])


def configure(tx: PostgresTransaction, command: Configure) -> ConfigureOutcome:
    queue = tx.find(command.queue)
    if queue is None:
        if command.create is None:
            raise UnknownQueue(command.queue)
        queue = create_queue(tx, command.queue, command.create.changed(command.changes))
        return ConfigureOutcome(info(tx, queue), created=True, changed=True)
    if command.exact and command.create is not None:
        wanted = command.create.changed(command.changes)
        if differing := wanted.differing(queue.options):
            raise QueueExists(queue.name, differing)
        return ConfigureOutcome(info(tx, queue), created=False, changed=False)
    options = queue.options.changed(command.changes)
    if options == queue.options:
        return ConfigureOutcome(info(tx, queue), created=False, changed=False)
    before = queue.options
    tx.write_counters()
    tx.write("admin.set_options", queue.id, encode_options(options, queue.stored_options), is_limited(options))
    tx.wakes.add(queue.name)
    tx.reload()
    queue = tx.queue(command.queue)
    found = info(tx, queue)
    record_changed(tx, queue, before, found)
    return ConfigureOutcome(found, created=False, changed=True)


def pause(tx: PostgresTransaction, command: Pause) -> ConfigureOutcome:
    queue = tx.itself(command.queue)
    changed = queue.paused != command.paused
    if changed:
        tx.write("admin.set_paused", queue.id, command.paused)
        queue.paused = command.paused
        record_queue(tx, queue, "paused" if command.paused else "resumed")
        tx.wakes.add(queue.name)
    return ConfigureOutcome(info(tx, queue), created=False, changed=changed)


def drop(tx: PostgresTransaction, command: Drop) -> Removed:
    queue = tx.itself(command.queue)
    found = info(tx, queue)
    held = sum(getattr(found, state) for state in GAUGES)
    if held and not command.force:
        raise QueueNotEmpty(queue.name, held)
    oldest_at = tx.fetch("admin.oldest_alive", *_lanes(queue))[0][0] if queue.is_journalled else None
    drop_queue(tx, queue)
    tx.write("admin.keep_last_queue_id", queue.id)
    record_dropped(tx, queue, held, found, oldest_at)
    tx.wakes.add(queue.name)
    return Removed(held)


def _lanes(queue: PostgresQueue) -> tuple[int, int]:
    """Return the first and the last row key of its messages."""
    return queue.plain_start, queue.plain_start + (1 << QUEUE_SHIFT) - 1


def drop_queue(tx: PostgresTransaction, queue: PostgresQueue) -> None:
    queue.changes = {}
    tx.write("admin.forget_failures_between", *_lanes(queue))
    tx.write("admin.forget_messages_between", *_lanes(queue))
    for name in FORGET:
        tx.write(f"admin.forget_{name}", queue.id)
    tx.dropped(queue)
    tx.context.latencies.forget(queue.id)


FORGET = (
    "extension",
    "ready",
    "scheduled",
    "single_lease",
    "lease_range",
    "dead",
    "archive",
    "key",
    "minute",
    "latency",
    "busy",
    "bucket",
    "api_key",
    "counter",
    "queue",
)
