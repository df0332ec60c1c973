"""Pushes in a transaction of the application: one call of a database function, over a connection of any driver.

Nothing here blocks, so asynchronous drivers can use it too.
"""

from __future__ import annotations

import msgspec

from penstock.core.commands import Push
from penstock.core.model import PushReceipt
from penstock.errors import InvalidInput, PenstockError, TryLater, UnknownQueue
from penstock.postgres.connection import DatabaseTarget
from penstock.store.common import CONTENT_CODES, queue_full, rate_limited
from penstock.store.interface import PushStatement
from penstock.store.postgres.context import StoreContext

# SQLSTATEs that a database without the function, its schema or its tables returns.
NO_PENSTOCK = ("42883", "3F000", "42P01")


POSTGRES_DRIVERS = "use one of psycopg 3 or asyncpg, or of SQLAlchemy or Django over them"


class _Reply(msgspec.Struct):
    first: int = 0
    now: int = 0
    duplicates: dict[int, tuple[int, int]] = {}
    """By position: id and creation time of the first message with that key."""
    refused: str | None = None
    undone: int = 0
    max_size: int = 0
    push_rate: float = 0
    lacking: float = 0


_replies = msgspec.json.Decoder(_Reply)


def push_statement(context: StoreContext, command: Push, *, durable: bool) -> PushStatement:
    messages = command.messages
    params = (
        None if context.clock is None else context.clock(),
        context.store_id,
        durable,
        command.queue,
        [message.payload for message in messages],
        [CONTENT_CODES[message.content] for message in messages],
        [message.priority for message in messages],
        [message.delay_ms for message in messages],
        [message.ttl_ms for message in messages],
        [message.key for message in messages],
        [None if each.headers is None else msgspec.json.encode(each.headers).decode() for each in messages],
    )
    return PushStatement(context.sql["push.own_transaction"].decode(), params)


def receipts(context: StoreContext, target: DatabaseTarget, command: Push, answer: str) -> list[PushReceipt]:
    """Return the receipts from the result of the statement; raise an error if the push was rejected."""
    reply = _replies.decode(answer)
    if reply.refused is not None:
        raise _rejection(target, command.queue, reply)
    # Counted in case no server compacts counters and drains the journal.
    context.uncompacted_counters += 1
    context.spooled += context.journals
    found = []
    for number in range(len(command.messages)):
        message_id, created_at = reply.duplicates.get(number, (reply.first + number, reply.now))
        found.append(PushReceipt(message_id, created_at, context.store_id, number in reply.duplicates))
    return found


def _rejection(target: DatabaseTarget, queue: str, reply: _Reply) -> PenstockError:
    if reply.refused == "queue":
        return UnknownQueue(queue)
    if reply.refused == "size":
        return queue_full(queue, reply.undone, reply.max_size)
    if reply.refused == "rate":
        return rate_limited(queue, reply.push_rate, reply.lacking)
    return other_database(target)


def in_use() -> TryLater:
    """Return the error for a command that waited too long for an application's open transaction."""
    return TryLater(
        "an open transaction of an application has pushed the same key, or to the queue to be changed",
        retry_after_ms=1_000,
        hint="end that transaction, then try again",
    )


def other_database(target: DatabaseTarget) -> InvalidInput:
    return InvalidInput(
        f"conn is not open on {target.shown} (schema {target.schema})", field="conn", hint="use the same database"
    )
