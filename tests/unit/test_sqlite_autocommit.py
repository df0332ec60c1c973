"""Without other writers a single push, lease or ack is one statement, and has the same result as a transaction."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.commands import Ack, Lease, Push, Remove, Settled, SettleItem
from penstock.core.model import Delivery, PushItem, PushReceipt, QueueOptions
from penstock.store.sqlite import SqliteStore
from tests.conformance.recount import check_tables
from tests.conformance.replay import check_journal

Opening = Callable[[], SqliteStore]


class Clock:
    now = 6_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[False, True], ids=["no journal", "journal"])
def open_store(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Opening:
    return lambda: SqliteStore(tmp_path / "queue.db", clock=clock, journal=request.param)


def check(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "queue.db")) as db:
        check_tables(db)
        if db.execute("SELECT 1 FROM penstock_setting WHERE name = 'journal'").fetchone():
            check_journal(db, tmp_path / "no folder")


def push(store: SqliteStore, body: bytes = b"x", queue: str = "q") -> int:
    (pushed,) = store.apply([Push(queue=queue, messages=[PushItem(payload=body)], create=QueueOptions())])
    new: int = pushed.receipts[0].id
    return new


def lease(store: SqliteStore, queue: str = "q") -> Delivery | None:
    messages: list[Delivery] = store.apply([Lease(queue=queue)])[0].messages
    return messages[0] if messages else None


def ack(store: SqliteStore, message: Delivery) -> Settled:
    result: Settled = store.apply([Ack(queue=message.queue, items=[SettleItem(message.id, message.token)])])[0].results[
        0
    ]
    return result


def statements(store: SqliteStore, act: Callable[[], Any]) -> int:
    seen: list[str] = []
    store._writer.set_trace_callback(seen.append)
    act()
    store._writer.set_trace_callback(None)
    # SQLite reports a statement again for each part of its trigger.
    return len({each for each in seen if not each.startswith("--")})


def test_a_push_a_lease_and_an_ack_are_one_statement_each(open_store: Opening, tmp_path: Path) -> None:
    store = open_store()
    for _ in range(4):
        push(store)
    while (message := lease(store)) is not None:
        ack(store, message)
    store._set_durability(True)
    assert statements(store, lambda: push(store)) == 1
    # A lease also switches fsync and WAL checkpoints off for its commit.
    assert statements(store, lambda: lease(store)) == 3
    check(tmp_path)


def test_a_repeated_request_gets_the_first_result_also_without_a_transaction(
    open_store: Opening, tmp_path: Path
) -> None:
    def push_once(key: str) -> PushReceipt:
        message = PushItem(payload=b"x")
        (pushed,) = store.apply([Push(queue="q", messages=[message], request_key=key)])
        receipt: PushReceipt = pushed.receipts[0]
        return receipt

    store = open_store()
    for _ in range(4):
        push(store)
    assert statements(store, lambda: push_once("first")) == 1
    first = push_once("first")
    assert first.duplicate
    second = push_once("second")
    assert not second.duplicate
    assert second.id == first.id + 1
    assert push_once("first").id == first.id
    check(tmp_path)
    store.close()
    reopened = open_store()
    (pushed,) = reopened.apply([Push(queue="q", messages=[PushItem(payload=b"x")], request_key="second")])
    assert pushed.receipts[0].duplicate
    assert pushed.receipts[0].id == second.id
    info = reopened.find_queue("q")
    assert info is not None
    assert info.ready == 6
    reopened.close()


@pytest.mark.parametrize("seed", range(5))
def test_stores_that_alternate_on_one_file_lose_nothing(
    open_store: Opening, clock: Clock, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    stores = [open_store() for _ in range(3)]
    pushed, held, acked = {push(stores[0])}, [], set()
    for _ in range(400):
        store = stores[0] if chance.random() < 0.8 else chance.choice(stores)
        act = chance.random()
        if act < 0.4:
            pushed.add(push(store))
        elif act < 0.7:
            message = lease(store)
            if message is not None:
                held.append(message)
        elif held:
            message = held.pop(chance.randrange(len(held)))
            assert ack(store, message) is Settled.OK
            assert ack(store, message) is Settled.OK
            acked.add(message.id)
        clock.now += chance.choice([0, 1, 30_000 if not held else 1])
    check(tmp_path)
    while (message := lease(stores[1])) is not None:
        held.append(message)
    assert {message.id for message in held} | acked == pushed
    assert len(held) + len(acked) == len(pushed)


def test_a_removed_message_is_neither_leased_nor_acked(open_store: Opening) -> None:
    store = open_store()
    for _ in range(4):
        push(store)
    while (message := lease(store)) is not None:
        ack(store, message)
    store.apply([Remove(queue="q", ids=[push(store)])])
    assert lease(store) is None
    push(store, b"y")
    message = lease(store)
    assert message is not None
    assert message.payload == b"y"
    open_store().apply([Remove(queue="q", ids=[message.id])])
    assert ack(store, message) is Settled.UNKNOWN


def test_an_outdated_cached_lease_does_not_break_an_ack(open_store: Opening, tmp_path: Path) -> None:
    store = open_store()
    for _ in range(4):
        push(store)
    message = lease(store)
    assert message is not None
    until, token, leased_at, pushed_at = store._transaction.recent_leases[message.id]
    store._transaction.recent_leases[message.id] = (until + 1, token, leased_at, pushed_at)
    assert ack(store, message) is Settled.OK
    check(tmp_path)


def test_leases_expire_on_time_without_reads(open_store: Opening, clock: Clock) -> None:
    store = open_store()
    for _ in range(4):
        push(store)
    message = lease(store)
    assert message is not None
    clock.now = message.leased_until
    assert ack(store, message) is Settled.STALE


def test_a_queue_of_a_tree_leaves_the_list_of_busy_queues_with_its_last_ack(
    open_store: Opening, tmp_path: Path
) -> None:
    store = open_store()
    for _ in range(4):
        push(store, queue="a/b/c")
    while (message := lease(store, "a/b/c")) is not None:
        ack(store, message)
    assert store.apply([Lease(scope="a")])[0].messages == []
    push(store, queue="a/b/c")
    assert len(store.apply([Lease(scope="a")])[0].messages) == 1
    check(tmp_path)
