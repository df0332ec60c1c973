"""Push: a plain message is one row; any other also gets a row with its time and order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import islice

import msgspec

from penstock.core.commands import Drop, Push, PushOutcome
from penstock.core.ids import QUEUE_SHIFT
from penstock.core.model import Content, PushItem, PushReceipt, QueueOptions
from penstock.core.sql_files import load_sql
from penstock.errors import KeyTaken, TryLater, UnknownQueue
from penstock.journal.recording import record_pushed, record_pushed_alike
from penstock.store.common import CONTENT_CODES, check_size, tokens_left
from penstock.store.request_dedup import NO_ROW_KEY, REQUEST_KEY, REQUEST_WINDOW_MS
from penstock.store.sqlite.configure import create_queue, drop
from penstock.store.sqlite.queues import ANYTHING, PUSHED, SqliteQueue
from penstock.store.sqlite.queues import SQL as COUNTER
from penstock.store.sqlite.transaction import SqliteTransaction
from penstock.store.sqlite.transitions import advance

SQL = load_sql("penstock.store.sqlite", "push")
MESSAGE = SQL["message"]

BYTES = Content.BYTES
# Payload bytes up to which a batch is inserted with many rows in a statement, which holds copies of its payloads.
ROWS_BYTES_MAX = 1 << 20
# Rows in one statement. Other numbers are put together from powers of two, so there are few statements to prepare.
ROWS_MAX = 64


def push(tx: SqliteTransaction, command: Push) -> PushOutcome:
    found = tx.find(command.queue)
    if found is None and command.create is None:
        raise UnknownQueue(command.queue)
    queue = found or create_queue(tx, command.queue, command.create or QueueOptions())
    space = 0 if command.global_keys else queue.id
    messages = command.messages
    # Expired messages must neither count against the queue's size nor keep their keys.
    advance(tx, queue)
    request_key = None if command.request_key is None else REQUEST_KEY + command.request_key
    options = queue.options
    try:
        duplicates = _find_duplicates(tx, queue, space, messages)
        repeated = request_key is not None and _find_repeated_request(tx, space, request_key, messages, duplicates)
        if options.max_size is not None or options.push_rate is not None:
            _admit(tx, queue, len(messages) - len(duplicates))
    except (KeyTaken, TryLater):
        if found is None:
            drop(tx, Drop(queue=queue.name))
        raise
    if request_key is not None and not repeated and len(duplicates) < len(messages):
        until = tx.now + REQUEST_WINDOW_MS
        tx.execute(SQL["keep_key"], (space, request_key, tx.next_ids(0), NO_ROW_KEY, tx.now, until))
    if not duplicates:
        return PushOutcome(insert(tx, queue, space, messages))
    inserted = iter(insert(tx, queue, space, [m for n, m in enumerate(messages) if n not in duplicates]))
    receipts: list[PushReceipt] = []
    for number in range(len(messages)):
        first = duplicates.get(number)
        if first is None:
            receipts.append(next(inserted))
        elif isinstance(first, int):
            twin = receipts[first]
            receipts.append(PushReceipt(twin.id, twin.created_at, twin.store_id, True))
        else:
            receipts.append(first)
    return PushOutcome(receipts)


def push_together(tx: SqliteTransaction, name: str, commands: Sequence[Push]) -> list[PushOutcome] | None:
    """Execute several pushes that cannot be rejected as one."""
    queue = tx.find(name)
    if queue is None or queue.options.max_size is not None or queue.options.push_rate is not None:
        return None
    messages: list[PushItem] = []
    for command in commands:
        if command.request_key is not None or any(message.key is not None for message in command.messages):
            return None
        messages += command.messages
    advance(tx, queue)
    receipts = iter(insert(tx, queue, queue.id, messages))
    return [PushOutcome(list(islice(receipts, len(command.messages)))) for command in commands]


def _find_duplicates(
    tx: SqliteTransaction, queue: SqliteQueue, space: int, messages: Sequence[PushItem]
) -> dict[int, PushReceipt | int]:
    """Return by position the receipt of the first message with that key, or its position in this batch.

    A global key used by another queue is an error: treating it as a duplicate would lose this message.
    """
    found: dict[int, PushReceipt | int] = {}
    seen: dict[str, int] = {}
    for number, message in enumerate(messages):
        if message.key is None:
            continue
        if message.key in seen:
            found[number] = seen[message.key]
            continue
        row = tx.execute(SQL["find_key"], (space, message.key)).fetchone()
        if row is not None:
            first_id, row_key, created_at, expires_at = row
            if expires_at > tx.now or tx.execute(SQL["is_alive"], (row_key, first_id)).fetchone():
                if space == 0 and row_key >> QUEUE_SHIFT != queue.id:
                    raise KeyTaken(queue.name, message.key)
                found[number] = PushReceipt(first_id, created_at, tx.store_id, True)
                continue
        seen[message.key] = number
    return found


def _find_repeated_request(
    tx: SqliteTransaction,
    space: int,
    request_key: str,
    messages: Sequence[PushItem],
    duplicates: dict[int, PushReceipt | int],
) -> bool:
    """Return True for a repeated request, and add its receipts: messages without a key have consecutive ids."""
    row = tx.execute(SQL["find_key"], (space, request_key)).fetchone()
    if row is None:
        return False
    message_id, _, created_at, _ = row
    taken = {receipt.id for receipt in duplicates.values() if isinstance(receipt, PushReceipt)}
    for number, message in enumerate(messages):
        if message.key is None:
            while message_id in taken:
                message_id += 1
            duplicates[number] = PushReceipt(message_id, created_at, tx.store_id, True)
            message_id += 1
    return True


def _admit(tx: SqliteTransaction, queue: SqliteQueue, count: int) -> None:
    """Raise an error if the queue's limits do not allow the push, before anything is written."""
    if not count:
        return
    options = queue.options
    check_size(queue.name, options, queue.unfinished, count)
    if options.push_rate is not None:
        elapsed_ms = tx.now - (queue.tokens_at or 0)
        queue.tokens = tokens_left(queue.name, options, queue.tokens, elapsed_ms, count)
        queue.tokens_at = tx.now
        tx.execute(COUNTER["tokens"], (queue.tokens, queue.tokens_at, queue.id))


def insert(tx: SqliteTransaction, queue: SqliteQueue, space: int, messages: Sequence[PushItem]) -> list[PushReceipt]:
    if not messages:
        return []
    now = tx.now
    # A later push must not overtake an earlier one when the clock steps back.
    in_order_at = max(now, queue.newest_at)
    if len(messages) > 1 and (alike := _insert_alike(tx, queue, messages, in_order_at)) is not None:
        return alike
    moved_at = None if in_order_at == now else in_order_at
    message_id = tx.next_ids(len(messages))
    queue.check_new_ids(message_id, len(messages))
    default_delay, default_ttl = queue.options.delay_ms, queue.options.ttl_ms
    plain_start, store_id = queue.plain_start, tx.store_id
    rows, ready, scheduled, keys, receipts = [], [], [], [], []
    for message in messages:
        delay_ms = default_delay if message.delay_ms is None else message.delay_ms
        ttl_ms = default_ttl if message.ttl_ms is None else message.ttl_ms
        priority, headers = message.priority, message.headers
        if priority == 0 and delay_ms == 0 and ttl_ms is None:
            row_key, available_at = plain_start | message_id, moved_at
        else:
            row_key = queue.row_key(message_id, plain=False)
            expires_at = None if ttl_ms is None else now + ttl_ms
            if delay_ms:
                available_at = now + delay_ms
                scheduled.append((queue.id, -priority, available_at, message_id, row_key, expires_at))
                queue.due_at = min(queue.due_at, available_at)
            else:
                available_at = moved_at
                ready.append((queue.id, -priority, in_order_at, message_id, row_key, expires_at))
            if expires_at is not None:
                queue.expiry_at = min(queue.expiry_at, expires_at)
        rows.append(
            (
                row_key,
                now,
                available_at,
                priority,
                0 if message.content is BYTES else CONTENT_CODES[message.content],
                message.key,
                None if headers is None else msgspec.json.encode(headers).decode(),
                message.payload,
            )
        )
        if message.key is not None:
            keys.append((space, message.key, message_id, row_key, now, now + queue.options.dedupe_ms))
        receipts.append(PushReceipt(message_id, now, store_id))
        message_id += 1
    if len(rows) == 1:
        tx.execute(MESSAGE, rows[0])
    else:
        tx.connection.executemany(MESSAGE, rows)
    if ready:
        queue.has_indexed_rows = True
        tx.connection.executemany(SQL["ready"], ready)
    if scheduled:
        tx.connection.executemany(SQL["scheduled"], scheduled)
    if keys:
        tx.connection.executemany(SQL["keep_key"], keys)
    if queue.is_journalled:
        expiries = {row[3]: row[5] for row in ready + scheduled} if ready or scheduled else None
        record_pushed(tx, queue, rows, expiries)
    queue.newest_at = in_order_at
    queue.last_id = tx.last_id
    queue.scheduled += len(scheduled)
    queue.ready += len(rows) - len(scheduled)
    queue.n_pushed += len(rows)
    tx.touch(queue, ANYTHING if ready or scheduled else PUSHED)
    return receipts


def _insert_alike(
    tx: SqliteTransaction, queue: SqliteQueue, messages: Sequence[PushItem], in_order_at: int
) -> list[PushReceipt] | None:
    """Insert plain messages that differ only in their payloads; None if they are anything else.

    A row of a long INSERT costs a fifth of one execution of a short INSERT. The payloads are passed as bytearrays,
    because the sqlite3 module looks for an adapter for every parameter of any other type of bytes.
    """
    if queue.options.delay_ms or queue.options.ttl_ms is not None:
        return None
    content = messages[0].content
    for each in messages:
        if (
            each.key is not None
            or each.headers is not None
            or each.content is not content
            or each.priority
            or each.delay_ms
            or each.ttl_ms is not None
        ):
            return None
    payloads = [each.payload for each in messages]
    if sum(map(len, payloads)) > ROWS_BYTES_MAX:
        return None
    count, now, store_id = len(payloads), tx.now, tx.store_id
    first = tx.next_ids(count)
    queue.check_new_ids(first, count)
    code = CONTENT_CODES[content]
    row_key, at, size = queue.plain_start | first, 0, ROWS_MAX
    while at < count:
        while size > count - at:
            size >>= 1
        values = (row_key + at, now, None if in_order_at == now else in_order_at, code)
        tx.execute(_insert_rows(size), (*values, *map(bytearray, payloads[at : at + size])))
        at += size
    if queue.is_journalled:
        record_pushed_alike(tx, queue, range(first, first + count), in_order_at, code, payloads)
    queue.newest_at = in_order_at
    queue.last_id = tx.last_id
    queue.ready += count
    queue.n_pushed += count
    tx.touch(queue, PUSHED)
    return [PushReceipt(message_id, now, store_id) for message_id in range(first, first + count)]


@cache
def _insert_rows(count: int) -> str:
    """Return an INSERT of plain messages with consecutive row keys: first key, times, content, and the payloads."""
    rows = ", ".join(f"(?1 + {number}, ?2, ?3, 0, ?4, NULL, NULL, ?{number + 5})" for number in range(count))
    return f"{MESSAGE.partition('VALUES')[0]}VALUES {rows}"
