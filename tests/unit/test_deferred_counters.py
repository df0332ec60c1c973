"""Counters of plain pushes and leases can be written later, but every reader gets the right counts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import LiteQueue
from penstock.core.commands import Configure, Lease, Push, Sweep, Transact
from penstock.core.model import PushItem, QueueOptions
from penstock.errors import QueueFull, StoreBusy
from penstock.store.sqlite import SqliteStore
from tests.conformance.recount import check_tables

MINUTE = 60_000


class Clock:
    def __init__(self) -> None:
        self.now = 100 * MINUTE

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


def push(store: SqliteStore, queue: str = "q", count: int = 1) -> int:
    messages = [PushItem(payload=b"x")] * count
    (pushed,) = store.apply([Push(queue=queue, messages=messages, create=QueueOptions())])
    newest: int = pushed.receipts[-1].id
    return newest


def stored_counter(file: Path, column: str, queue_id: int = 1) -> int:
    with closing(sqlite3.connect(file)) as connection:
        (value,) = connection.execute(
            f"SELECT {column} FROM penstock_counter WHERE queue_id = ?", (queue_id,)
        ).fetchone()
    return int(value)


def test_the_third_push_in_a_row_defers_its_counter_and_readers_include_it(file: Path, clock: Clock) -> None:
    ours, theirs = SqliteStore(file, clock=clock), SqliteStore(file, clock=clock)
    for _ in range(5):
        push(ours)
    assert stored_counter(file, "ready") == 2
    for store in (ours, theirs):
        info = store.stats("q").info
        assert (info.ready, info.totals.pushed) == (5, 5)
        assert [each.ready for each in store.list_queues()] == [5]
    ours.apply([Lease(queue="q", limit=2)])
    assert stored_counter(file, "leased") == 0
    for store in (ours, theirs):
        info = store.stats("q").info
        assert (info.ready, info.leased, info.totals.leased) == (3, 2, 2)
    (leased,) = theirs.apply([Lease(queue="q", limit=9)])
    assert len(leased.messages) == 3
    ours.close()
    theirs.close()


def test_ids_grow_across_queues_processes_and_deferred_pushes(file: Path, clock: Clock) -> None:
    ours, theirs = SqliteStore(file, clock=clock), SqliteStore(file, clock=clock)
    ids = [push(ours) for _ in range(4)]
    ids.append(push(theirs, "other"))
    ids += [push(ours, name) for name in ("q", "third", "third", "third", "q")]
    ids.append(push(theirs, "q"))
    assert ids == list(range(1, len(ids) + 1))
    ours.close()
    theirs.close()


def test_deferred_pushes_are_counted_in_their_own_minute(file: Path, clock: Clock) -> None:
    with closing(SqliteStore(file, clock=clock)) as store:
        for _ in range(4):
            push(store)
        store.apply([Lease(queue="q", limit=1)])
        clock.now += MINUTE
        push(store)
        with closing(sqlite3.connect(file)) as connection:
            row = connection.execute("SELECT ready, leased, n_pushed, n_leased FROM penstock_minute").fetchone()
        assert row == (3, 1, 4, 1)
        assert stored_counter(file, "n_pushed") == 5


def test_deferred_counters_are_written_at_intervals(file: Path, clock: Clock) -> None:
    with closing(SqliteStore(file, clock=clock)) as store:
        for _ in range(600):
            push(store)
        assert stored_counter(file, "n_pushed") > 300
        assert store.stats("q").info.ready == 600


def test_a_push_to_another_queue_writes_the_deferred_counters(file: Path, clock: Clock) -> None:
    with closing(SqliteStore(file, clock=clock)) as store:
        for _ in range(4):
            push(store, "a")
        for _ in range(4):
            push(store, "b")
        assert (stored_counter(file, "ready", 1), stored_counter(file, "ready", 2)) == (4, 2)
        assert [each.ready for each in store.list_queues()] == [4, 4]


def test_a_deferred_lease_expires_in_the_sweep_of_another_process(file: Path, clock: Clock) -> None:
    with closing(SqliteStore(file, clock=clock)) as store:
        for _ in range(3):
            push(store)
        store.apply([Lease(queue="q", limit=3, lease_ms=10)])
    clock.now += 11
    with closing(SqliteStore(file, clock=clock)) as other:
        (swept,) = other.apply([Sweep()])
        assert swept.lapsed == 3
        assert other.stats("q").info.ready == 3


def test_a_push_on_the_callers_connection_can_be_deferred_too(file: Path) -> None:
    with LiteQueue(file) as queue, closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for _ in range(3):
            queue.put(b"x")
        connection.execute("BEGIN")
        queue.put(b"gone", conn=connection)
        connection.execute("ROLLBACK")
        queue.put(b"kept", conn=connection)
        assert queue.qsize() == 4
        assert [message.data for message in queue.pop_many(9)] == [b"x"] * 3 + [b"kept"]


def test_another_process_can_ack_a_popped_message(file: Path) -> None:
    with LiteQueue(file) as ours, LiteQueue(file) as theirs:
        ours.put_many([b"a", b"b"])
        message = ours.pop()
        assert message is not None
        ours.extend(message, 120)
        theirs.ack(message)
        second = ours.pop()
        assert second is not None
        ours.ack(second)
        assert (ours.qsize(), ours.pop(), theirs.pop()) == (0, None, None)


def ids_of(store: SqliteStore, *queues: str) -> list[int]:
    return sorted(message.id for queue in queues for message in store.export(queue))


def test_a_fast_path_push_notices_every_other_writer(file: Path, clock: Clock) -> None:
    ours, theirs = SqliteStore(file, clock=clock), SqliteStore(file, clock=clock)
    for _ in range(4):
        push(ours)
    push(theirs, "other")
    push(ours)
    push(ours)
    with closing(sqlite3.connect(file)) as connection:
        theirs.apply_on(connection, [Push(queue="q", messages=[PushItem(payload=b"x")])])
        connection.commit()
    push(ours)
    assert ids_of(ours, "q", "other") == list(range(1, 10))
    assert ours.stats("q").info.totals.pushed == theirs.stats("q").info.totals.pushed == 8


def test_a_fast_path_push_obeys_new_options_of_another_process(file: Path, clock: Clock) -> None:
    ours, theirs = SqliteStore(file, clock=clock), SqliteStore(file, clock=clock)
    for _ in range(4):
        push(ours)
    theirs.apply([Configure(queue="q", changes={"max_size": 4})])
    (refused,) = ours.apply([Push(queue="q", messages=[PushItem(payload=b"x")])])
    assert isinstance(refused, QueueFull)


def test_a_fast_path_push_is_recorded_in_a_new_journal(file: Path, clock: Clock) -> None:
    ours = SqliteStore(file, clock=clock)
    for _ in range(4):
        push(ours)
    SqliteStore(file, clock=clock, journal=True).close()
    push(ours)
    assert ours.journal_waits


def test_a_fast_path_push_waits_for_the_lock(file: Path, clock: Clock) -> None:
    ours = SqliteStore(file, clock=clock, busy_ms=1)
    for _ in range(4):
        push(ours)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            push(ours)
    push(ours)
    assert ids_of(ours, "q") == [1, 2, 3, 4, 5]


FAILS = Transact(commands=[Push(queue="no such queue", messages=[PushItem(payload=b"x")])])


def test_a_write_beside_a_failed_transaction_is_seen_by_another_process(file: Path, clock: Clock) -> None:
    ours, theirs = SqliteStore(file, clock=clock), SqliteStore(file, clock=clock)
    push(theirs, "other")
    for _ in range(4):
        push(ours)
    theirs.apply([FAILS, Push(queue="other", messages=[PushItem(payload=b"x")])])
    push(ours)
    assert ids_of(ours, "q", "other") == list(range(1, 8))


def test_deferred_counters_survive_a_failed_transaction(file: Path, clock: Clock) -> None:
    store = SqliteStore(file, clock=clock)
    push(store, "other")
    for _ in range(4):
        push(store)
    for _ in range(3):
        store.apply([FAILS, Push(queue="other", messages=[PushItem(payload=b"x")])])
    with closing(sqlite3.connect(file)) as connection:
        check_tables(connection)


def is_last_writer(file: Path, store: SqliteStore) -> bool:
    """Return True if the file names this store as its last writer."""
    with closing(sqlite3.connect(file)) as connection:
        (writer,) = connection.execute("SELECT value FROM penstock_setting WHERE name = 'writer'").fetchone()
    return bool(writer == store._transaction.writer)


def test_a_new_owner_of_a_file_may_use_the_fast_path(file: Path, clock: Clock) -> None:
    first = SqliteStore(file, clock=clock)
    for _ in range(4):
        push(first)
    assert is_last_writer(file, first)
    first.close()
    second = SqliteStore(file, clock=clock)
    for _ in range(4):
        push(second)
    assert is_last_writer(file, second)
    assert second._transaction.is_writer


@pytest.mark.parametrize(
    "special", [{"key": ""}, {"headers": {}}, {"ttl_ms": 60_000}, {"delay_ms": 1}, {"priority": 1}]
)
def test_a_message_with_options_is_not_pushed_by_the_fast_path(
    file: Path, clock: Clock, special: dict[str, Any]
) -> None:
    store = SqliteStore(file, clock=clock)
    for _ in range(4):
        push(store)
    store.apply([Push(queue="q", messages=[PushItem(payload=b"x", **special)])])
    (stored,) = [message for message in store.export("q") if message.id == 5]
    for name in ("key", "headers", "priority"):
        assert getattr(stored, name) == special.get(name, 0 if name == "priority" else None)
    assert (stored.expires_at is not None) == ("ttl_ms" in special)


def test_a_rolled_back_transaction_does_not_claim_the_file(file: Path, clock: Clock) -> None:
    """The rolled-back transaction made `theirs` the last writer, but `ours` must still notice its next push."""
    ours, theirs = SqliteStore(file, clock=clock), SqliteStore(file, clock=clock)
    for _ in range(4):
        push(ours)
    push(ours, "other")
    for _ in range(4):
        newest = push(ours)
    plain = Push(queue="q", messages=[PushItem(payload=b"x")])
    too_many = Push(queue="new", messages=[PushItem(payload=b"x")] * 2, create=QueueOptions(max_size=1))
    more = Push(queue="other", messages=[PushItem(payload=b"x")])
    refused, pushed = theirs.apply([Transact(commands=[plain, too_many]), more])
    assert isinstance(refused, QueueFull)
    assert pushed.receipts[0].id == newest + 1
    assert push(ours) == newest + 2
