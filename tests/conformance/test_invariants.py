"""A command that would corrupt stored data is refused before it writes, and other commands are not affected."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from penstock.core.commands import (
    Ack,
    Command,
    Nack,
    Push,
    PushOutcome,
    Release,
    Settled,
    SettledAll,
    SettleItem,
)
from penstock.core.model import PushItem
from penstock.errors import InvariantBroken
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.sqlite import SqliteStore
from tests.conformance.postgres_support import PostgresUnderTest, Tables
from tests.conformance.support import StoreUnderTest, push_command, texts

Verb = Callable[..., Command[SettledAll]]


def execute_directly(store: StoreUnderTest, sql: str) -> None:
    """Change a table behind the store's back."""
    if isinstance(store, PostgresUnderTest):
        with closing(Tables(str(store.path), store.schema)) as tables:
            tables.execute(sql)
    else:
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute(sql)


@pytest.mark.parametrize("verb", [Ack, Nack, Release])
def test_a_lease_row_of_another_message_settles_neither(shared: StoreUnderTest, verb: Verb) -> None:
    # A message with a priority gets its own lease row instead of a shared range.
    shared.push(*"abc", priority=1)
    other, leased, last = (shared.lease_one() for _ in range(3))
    shared.ack(last)
    shared.reopen()
    execute_directly(shared, f"UPDATE penstock_single_lease SET place = place - 1 WHERE id = {leased.id}")
    settle = verb(queue="q", items=[SettleItem(leased.id, leased.token)])
    with pytest.raises(InvariantBroken):
        shared.do(settle)
    refused, pushed = shared.store.apply([settle, push_command("d")])
    assert isinstance(refused, InvariantBroken)
    assert isinstance(pushed, PushOutcome)
    execute_directly(shared, f"UPDATE penstock_single_lease SET place = place + 1 WHERE id = {leased.id}")
    assert shared.do(settle).results == [Settled.OK]
    assert shared.ack(other) == [Settled.OK]


def test_a_counter_never_becomes_negative(on_file: StoreUnderTest) -> None:
    on_file.push("a")
    leased = on_file.lease_one()
    on_file.reopen()
    execute_directly(on_file, "UPDATE penstock_counter SET leased = leased - 1")
    with pytest.raises(InvariantBroken, match="-1 leased"):
        on_file.ack(leased)
    execute_directly(on_file, "UPDATE penstock_counter SET leased = leased + 1")
    assert on_file.ack(leased) == [Settled.OK]


def test_a_batch_with_a_missing_message_is_not_acked(on_file: StoreUnderTest) -> None:
    on_file.push(*"abc")
    batch = on_file.lease(limit=3)
    execute_directly(on_file, f"CREATE TABLE aside AS SELECT * FROM penstock_message WHERE payload = x'{b'b'.hex()}'")
    execute_directly(on_file, f"DELETE FROM penstock_message WHERE payload = x'{b'b'.hex()}'")
    with pytest.raises(InvariantBroken, match="a lease of 3 messages holds 2"):
        on_file.ack(*batch)
    execute_directly(on_file, "INSERT INTO penstock_message SELECT * FROM aside")
    execute_directly(on_file, "DROP TABLE aside")
    assert on_file.info().leased == 3
    assert on_file.ack(*batch) == [Settled.OK] * 3


def transaction_of(store: StoreUnderTest) -> Any:
    """Return the transaction of a SQLite store, with its cache."""
    assert isinstance(store.store, SqliteStore)
    return store.store._transaction


@pytest.mark.parametrize("count", [1, 2])
def test_an_id_is_never_assigned_twice(on_file: StoreUnderTest, count: int) -> None:
    on_file.push("a")
    on_file.push("b")
    transaction_of(on_file).last_id = 0
    with pytest.raises(InvariantBroken):
        on_file.do(Push(queue="q", messages=[PushItem(payload=b"c")] * count))
    assert texts(on_file.peek("q", limit=9)[0]) == ["a", "b"]


def test_a_message_behind_the_cursor_is_not_leased_again(on_file: StoreUnderTest) -> None:
    on_file.push("a")
    on_file.push("b")
    on_file.lease(limit=2)
    queue = transaction_of(on_file).queue("q")
    for message_id in (1, 2):
        with pytest.raises(InvariantBroken):
            queue.check_next(queue.plain_start | message_id)
    with pytest.raises(InvariantBroken):
        queue.check_next(queue.plain_end | 3)
    queue.check_next(queue.plain_start | 3)


def test_a_cursor_only_moves_forward_within_its_queue() -> None:
    queue = PostgresQueue(("q", 7, "{}", False, 0, 7 << 45 | 5, 0, None, None, None, 0, 0, False))
    for row_key in (7 << 45 | 5, 7 << 45 | 4, 8 << 45 | 6, (7 << 45) + (1 << 44)):
        with pytest.raises(InvariantBroken):
            queue.move_cursor(row_key)
    queue.move_cursor(7 << 45 | 6)
    assert queue.cursor == 7 << 45 | 6
