"""Pushes in a transaction of the application's own: one call of a function in the database, on any driver's connection.

Nothing here waits, so that asynchronous drivers can use it too.
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

NO_PENSTOCK = ("42883", "3F000", "42P01")
"""SQLSTATEs of a database without the function, its schema or its tables."""


POSTGRES_DRIVERS = "of psycopg 3 or asyncpg, or SQLAlchemy's or Django's over one of them"


class _Answer(msgspec.Struct):
    first: int = 0
    now: int = 0
    duplicates: dict[int, tuple[int, int]] = {}
    """By position: the id and the time of the first message with that key."""
    refused: str | None = None
    undone: int = 0
    max_size: int = 0
    push_rate: float = 0
    lacking: float = 0


_answers = msgspec.json.Decoder(_Answer)


def push_statement(context: StoreContext, command: Push, *, durable: bool) -> PushStatement:
    messages = command.messages
    params = (
        None if context.clock is None else context.clock(),
        context.salt,
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
    """What the statement answered; an error if it was refused."""
    told = _answers.decode(answer)
    if told.refused is not None:
        raise _refusal(target, command.queue, told)
    # For when no server folds counters and copies the journal.
    context.uncompacted_counters += 1
    context.spooled += context.journals
    found = []
    for number in range(len(command.messages)):
        message_id, created_at = told.duplicates.get(number, (told.first + number, told.now))
        found.append(PushReceipt(message_id, created_at, context.salt, number in told.duplicates))
    return found


def _refusal(target: DatabaseTarget, queue: str, told: _Answer) -> PenstockError:
    if told.refused == "queue":
        return UnknownQueue(queue)
    if told.refused == "size":
        return queue_full(queue, told.undone, told.max_size)
    if told.refused == "rate":
        return rate_limited(queue, told.push_rate, told.lacking)
    return other_database(target)


def in_use() -> TryLater:
    """A command that an application's open transaction stands in the way of."""
    return TryLater(
        "an open transaction of an application has pushed this key, or to the queue that is to be changed",
        retry_after_ms=1_000,
        hint="end that transaction, then try again",
    )


def other_database(target: DatabaseTarget) -> InvalidInput:
    return InvalidInput(
        f"conn is not open on {target.shown} (schema {target.schema})", field="conn", hint="use the same database"
    )
