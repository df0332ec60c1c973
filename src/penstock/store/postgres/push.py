"""Push: a plain message is one row; any other also gets a row with its time and order.

Adjacent pushes in a batch, to any queues, are written with one statement per table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from penstock.core.commands import Push, PushOutcome
from penstock.core.ids import QUEUE_SHIFT
from penstock.core.model import PushItem, PushReceipt
from penstock.errors import KeyTaken, PenstockError, UnknownQueue
from penstock.journal.events import UNNUMBERED
from penstock.journal.recording import record_pushed
from penstock.postgres.pipeline import Rows, Statement, blobs, ints, ints_or_nulls, texts
from penstock.store.common import CONTENT_CODES, NO_TRANSITIONS, check_size, tokens_left
from penstock.store.postgres.configure import create_queue, drop_queue
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.transaction import KEY_WAIT_MS, PostgresTransaction
from penstock.store.postgres.transitions import advance
from penstock.store.request_dedup import NO_ROW_KEY, REQUEST_KEY, REQUEST_WINDOW_MS

# Key space (a queue id, or 0 for global keys) and key.
Key = tuple[int, str]


class Writing:
    """Rows of a run of pushes and the keys found for them. Ids are assigned when the rows are written."""

    def __init__(self, tx: PostgresTransaction, *, is_first: bool = True) -> None:
        self.tx = tx
        self.is_first = is_first
        self.count = 0
        self.messages: list[tuple[Any, ...]] = []
        self.ready: list[tuple[Any, ...]] = []
        self.scheduled: list[tuple[Any, ...]] = []
        self.keys: dict[Key, tuple[Any, ...]] = {}
        self.old_keys: set[Key] = set()
        self.receipts: list[tuple[int, PushReceipt]] = []
        # First message of each active key: its receipt or, if it belongs to this run, its number.
        self.known: dict[Key, PushReceipt | int] = {}
        # Queue of that message, for global keys.
        self.homes: dict[str, int] = {}
        # First id and time of each repeated request.
        self.requests: dict[Key, tuple[int, int]] = {}
        self.busy: dict[int, str] = {}
        # Queues pushed to whose events go into the journal.
        self.journalled: dict[int, PostgresQueue] = {}

    def learn_keys(self, rows: Rows) -> None:
        now = self.tx.now
        for space, key, first_id, created_at, expires_at, alive, home in rows:
            if key.startswith(REQUEST_KEY):
                self.requests[space, key] = (first_id, created_at)
            elif expires_at > now or alive:
                self.known[space, key] = PushReceipt(first_id, created_at, self.tx.store_id, True)
                if space == 0:
                    self.homes[key] = home
            else:
                self.old_keys.add((space, key))

    def receipt(self, number: int, *, duplicate: bool = False) -> PushReceipt:
        receipt = PushReceipt(0, self.tx.now, self.tx.store_id, duplicate)
        self.receipts.append((number, receipt))
        return receipt

    def write(self, *, last: bool = True) -> None:
        """Assign the ids and write all rows."""
        tx, count = self.tx, self.count
        if not count:
            return
        # A second run in one batch leaves no mark: that of the first tells whether both were committed.
        mark = tx.mark if self.is_first else None
        statement = ("push.messages", count, mark, tx.now, *self._message_columns())
        if self.journalled and not (tx.final and last):
            rows = tx.fetch(*statement)
            self._number(rows)
            self._note(rows[0][0])
        else:
            tx.on_numbered = self._number if self.is_first else None
            tx.write(*statement, then=self._number)
            if self.journalled:
                # The journal records get their ids later, together with their offsets, which saves a round trip.
                self._note(0, UNNUMBERED)
                tx.unnumbered = count
        back = count - 1
        for name, rows in (("push.ready", self.ready), ("push.scheduled", self.scheduled)):
            if rows:
                lanes, numbers, ranks, at, expiries = zip(*rows, strict=True)
                behind = ints(back - number for number in numbers)
                tx.write(name, ints(lanes), behind, ints(ranks), ints(at), ints_or_nulls(expiries))
        tx.schedules |= bool(self.scheduled)
        # Request keys alone never wait for an application's transaction.
        with tx.waiting_briefly(KEY_WAIT_MS) if self.known else nullcontext():
            self._write_keys(back)
        if self.busy:
            tx.write("push.busy", ints(self.busy), texts(list(self.busy.values())))

    def _message_columns(self) -> tuple[Any, ...]:
        """Return the columns of all messages; an array is empty if all its values are the default."""
        lanes, _, _, at, priorities, contents, keys, headers, payloads = zip(*self.messages, strict=True)
        return (
            lanes[0],
            ints(lanes) if lanes.count(lanes[0]) < len(lanes) else ints(()),
            ints_or_nulls(at),
            ints(priorities) if any(priorities) else ints(()),
            ints(contents) if any(contents) else ints(()),
            texts(keys),
            texts(headers),
            blobs(payloads),
        )

    def _write_keys(self, back: int) -> None:
        replaced = self.old_keys & self.keys.keys()
        if replaced:
            spaces, keys = zip(*sorted(replaced), strict=True)
            self.tx.write("push.forget_keys", ints(spaces), texts(keys))
        if self.keys:
            spaces, keys = zip(*self.keys, strict=True)
            lanes, numbers, made, expiries = zip(*self.keys.values(), strict=True)
            behind = ints(back - number for number in numbers)
            self.tx.write("push.keep_keys", ints(spaces), texts(keys), ints(lanes), behind, ints(made), ints(expiries))

    def _note(self, first_id: int, marks: int = 0) -> None:
        expiries = {first_id + row[1]: row[4] for row in (*self.ready, *self.scheduled) if row[4] is not None}
        by_queue: dict[int, list[tuple[Any, ...]]] = {}
        for row in self.messages:
            queue_id = row[0] >> QUEUE_SHIFT
            if queue_id in self.journalled:
                by_queue.setdefault(queue_id, []).append((first_id + row[1], *row[2:]))
        for queue_id, rows in by_queue.items():
            record_pushed(self.tx, self.journalled[queue_id], rows, expiries, marks)

    def _number(self, rows: Rows) -> None:
        first = rows[0][0]
        for number, receipt in self.receipts:
            receipt.id = first + number


def _wanted(command: Push, space: int) -> Iterator[Key]:
    for message in command.messages:
        if message.key is not None:
            yield space, message.key
    if command.request_key is not None:
        yield space, REQUEST_KEY + command.request_key


def early_statements(tx: PostgresTransaction, commands: Sequence[Push]) -> list[Statement]:
    """Return the query for duplicates, to go with the first round trip."""
    keys = _keys(commands, tx.context.ids.get)
    return [Statement(tx.context.sql["push.find_keys"], _columns(keys))] if keys else []


def _keys(commands: Sequence[Push], queue_id: Callable[[str], int | None]) -> list[Key]:
    found: dict[Key, None] = {}
    for command in commands:
        space = 0 if command.global_keys else queue_id(command.queue)
        if space is not None:
            found.update(dict.fromkeys(_wanted(command, space)))
    return list(found)


def _columns(keys: list[Key]) -> tuple[bytes, bytes]:
    return ints(space for space, _ in keys), texts([key for _, key in keys])


def push_all(tx: PostgresTransaction, commands: Sequence[Push]) -> list[PushOutcome | PenstockError]:
    """Execute a run of pushes. Each sees those before it; a rejected push adds nothing."""
    writing = _begin(tx, commands)
    outcomes: list[PushOutcome | PenstockError] = []
    for number, command in enumerate(commands):
        if command.request_key is not None and _is_repeated(tx, writing, command):
            # The same request occurs twice in one batch: the second must see the ids of the first.
            writing.write(last=False)
            writing = _begin(tx, commands[number:], is_first=writing.is_first and not writing.count)
        try:
            outcomes.append(PushOutcome(_push_or_undo(tx, writing, command)))
        except PenstockError as error:
            outcomes.append(error)
    writing.write()
    return outcomes


def _begin(tx: PostgresTransaction, commands: Sequence[Push], *, is_first: bool = True) -> Writing:
    early, tx.early_rows = tx.early_rows, []
    for name in {command.queue for command in commands}:
        queue = tx.find(name)
        # Expired messages must neither count against the queue's size nor keep their keys.
        if queue is not None and not tx.is_assumed and advance(tx, queue) is not NO_TRANSITIONS:
            early = []
    writing = Writing(tx, is_first=is_first)
    if early:
        writing.learn_keys(early[0])
    else:
        keys = _keys(commands, lambda name: getattr(tx.find(name), "id", None))
        if keys:
            writing.learn_keys(tx.fetch("push.find_keys", *_columns(keys)))
    return writing


def _is_repeated(tx: PostgresTransaction, writing: Writing, command: Push) -> bool:
    queue = tx.find(command.queue)
    space = 0 if command.global_keys or queue is None else queue.id
    return (space, f"{REQUEST_KEY}{command.request_key}") in writing.keys


def _push_or_undo(tx: PostgresTransaction, writing: Writing, command: Push) -> list[PushReceipt]:
    queue = tx.find(command.queue)
    if queue is not None:
        return _push(tx, writing, queue, command)
    if command.create is None:
        raise UnknownQueue(command.queue)
    mark = tx.journal.mark()
    queue = create_queue(tx, command.queue, command.create)
    try:
        return _push(tx, writing, queue, command)
    except PenstockError:
        drop_queue(tx, queue)
        tx.journal.roll_back_to(mark)
        raise


def _push(tx: PostgresTransaction, writing: Writing, queue: PostgresQueue, command: Push) -> list[PushReceipt]:
    space = 0 if command.global_keys else queue.id
    duplicates = _find_duplicates(writing, queue, space, command)
    added = len(command.messages) - len(duplicates)
    options = queue.options
    if options.max_size is not None or options.push_rate is not None:
        _admit(tx, queue, added)
    if command.request_key is not None and added and _request(space, command) not in writing.requests:
        until = tx.now + REQUEST_WINDOW_MS
        writing.keys[space, REQUEST_KEY + command.request_key] = (NO_ROW_KEY, writing.count, tx.now, until)
    new = [message for position, message in enumerate(command.messages) if position not in duplicates]
    inserted = iter(insert_all(tx, writing, queue, space, new))
    receipts: list[PushReceipt] = []
    for position in range(len(command.messages)):
        first = duplicates.get(position)
        if first is None:
            receipts.append(next(inserted))
        else:
            receipts.append(writing.receipt(first, duplicate=True) if isinstance(first, int) else first)
    return receipts


def insert_all(
    tx: PostgresTransaction, writing: Writing, queue: PostgresQueue, space: int, messages: Sequence[PushItem]
) -> list[PushReceipt]:
    """Add messages to the rows to write, without checking the queue's limits, and count them."""
    if not messages:
        return []
    before = len(writing.scheduled)
    receipts = [_insert(tx, writing, queue, space, message) for message in messages]
    later = len(writing.scheduled) - before
    queue.newest_at = max(tx.now, queue.newest_at)
    queue.pushed_to = True
    tx.wakes.add(queue.name)
    if queue.is_journalled:
        writing.journalled[queue.id] = queue
    queue.count(ready=len(messages) - later, scheduled=later, n_pushed=len(messages))
    if "/" in queue.name:
        writing.busy[queue.id] = queue.name
    return receipts


def _request(space: int, command: Push) -> Key:
    return space, f"{REQUEST_KEY}{command.request_key}"


def _find_duplicates(writing: Writing, queue: PostgresQueue, space: int, command: Push) -> dict[int, PushReceipt | int]:
    """Return by position the receipt of the first message with that key or, if it belongs to this run, its number.

    A global key used by another queue is an error: treating it as a duplicate would lose this message.
    """
    found: dict[int, PushReceipt | int] = {}
    for position, message in enumerate(command.messages):
        if message.key is not None and (first := writing.known.get((space, message.key))) is not None:
            if space == 0 and writing.homes[message.key] != queue.id:
                raise KeyTaken(queue.name, message.key)
            found[position] = first
    if command.request_key is not None:
        request = writing.requests.get((space, REQUEST_KEY + command.request_key))
        if request is not None:
            _find_repeated(writing, command.messages, request, found)
    numbers: dict[str, int] = {}
    number = writing.count
    for position, message in enumerate(command.messages):
        if position in found:
            continue
        if message.key is not None:
            if message.key in numbers:
                found[position] = numbers[message.key]
                continue
            numbers[message.key] = number
        number += 1
    return found


def _find_repeated(
    writing: Writing, messages: Sequence[PushItem], request: tuple[int, int], found: dict[int, PushReceipt | int]
) -> None:
    """Add the receipts of a repeated request: its messages without a key have consecutive ids from the first on."""
    message_id, created_at = request
    taken = {receipt.id for receipt in found.values() if isinstance(receipt, PushReceipt)}
    for position, message in enumerate(messages):
        if message.key is None:
            while message_id in taken:
                message_id += 1
            found[position] = PushReceipt(message_id, created_at, writing.tx.store_id, True)
            message_id += 1


def _admit(tx: PostgresTransaction, queue: PostgresQueue, count: int) -> None:
    if not count:
        return
    options = queue.options
    check_size(queue.name, options, queue.unfinished, count)
    if options.push_rate is not None:
        rows = tx.fetch("push.tokens", queue.id)
        tokens, at = rows[0] if rows else (None, tx.now)
        left = tokens_left(queue.name, options, tokens, tx.now - at, count)
        tx.write("push.keep_tokens", queue.id, float(left), tx.now)


def _insert(
    tx: PostgresTransaction, writing: Writing, queue: PostgresQueue, space: int, message: PushItem
) -> PushReceipt:
    now, options = tx.now, queue.options
    # A later push must not overtake an earlier one when the clock steps back.
    in_order_at = max(now, queue.newest_at)
    moved_at = None if in_order_at == now else in_order_at
    delay_ms = options.delay_ms if message.delay_ms is None else message.delay_ms
    ttl_ms = options.ttl_ms if message.ttl_ms is None else message.ttl_ms
    priority, headers, number = message.priority, message.headers, writing.count
    if priority == 0 and delay_ms == 0 and ttl_ms is None:
        lane, available_at = queue.plain_start, moved_at
    else:
        lane = queue.plain_end
        expires_at = None if ttl_ms is None else now + ttl_ms
        if delay_ms:
            available_at = now + delay_ms
            writing.scheduled.append((lane, number, -priority, available_at, expires_at))
            queue.due_at = min(queue.due_at, available_at)
        else:
            available_at = moved_at
            writing.ready.append((lane, number, -priority, in_order_at, expires_at))
        if expires_at is not None:
            queue.expiry_at = min(queue.expiry_at, expires_at)
    writing.messages.append(
        (
            lane,
            number,
            now,
            available_at,
            priority,
            CONTENT_CODES[message.content],
            message.key,
            None if headers is None else msgspec.json.encode(headers).decode(),
            message.payload,
        )
    )
    if message.key is not None:
        writing.keys[space, message.key] = (lane, number, now, now + options.dedupe_ms)
        writing.known[space, message.key] = number
        if space == 0:
            writing.homes[message.key] = queue.id
    writing.count += 1
    return writing.receipt(number)
