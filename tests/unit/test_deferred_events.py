"""Events of deferred pushes and leases are recorded by the next writer, once and in order."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.commands import Ack, CatchUpJournal, Configure, Extend, Lease, Push, SettleItem
from penstock.core.model import PushItem, QueueOptions
from penstock.journal.events import Event
from penstock.store.sqlite import SqliteStore
from tests.conformance.replay import check_journal, events_in


class Clock:
    now = 6_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


def open_store(file: Path, clock: Clock) -> SqliteStore:
    return SqliteStore(file, clock=clock, durability="relaxed", journal=True)


def push(store: SqliteStore, *texts: str, queue: str = "q") -> None:
    messages = [PushItem(payload=text.encode()) for text in texts]
    store.apply([Push(queue=queue, messages=messages, create=QueueOptions(journal="full"))])


def recorded_events(file: Path) -> list[Event]:
    with closing(sqlite3.connect(file)) as db:
        check_journal(db, file.with_name("no folder"))
        return [event for event in events_in(db) if event.kind != "queue"]


def recorded_kinds(file: Path) -> list[tuple[str, str]]:
    return [(event.kind, event.queue) for event in recorded_events(file)]


def test_deferred_events_are_recorded_with_the_next_ack_at_their_own_time(file: Path, clock: Clock) -> None:
    store = open_store(file, clock)
    for text in "abcd":
        push(store, text)
        clock.now += 1
    (leased,) = store.apply([Lease(queue="q", worker="w")])
    assert [event.body for event in recorded_events(file)] == [b"a", b"b"]
    clock.now += 1
    store.apply([Ack(queue="q", items=[SettleItem(each.id, each.token) for each in leased.messages])])
    events = recorded_events(file)
    assert [event.kind for event in events] == ["pushed"] * 4 + ["leased", "acked"]
    assert [event.body for event in events[:4]] == [b"a", b"b", b"c", b"d"]
    assert [event.at - 6_000_000 for event in events] == [0, 1, 2, 3, 4, 5]
    assert events[4].details == {"worker": "w"}


def test_after_a_crash_the_next_process_records_the_missing_events(file: Path, clock: Clock) -> None:
    dead = open_store(file, clock)
    for text in "abcd":
        push(dead, text)
    dead.apply([Lease(queue="q", worker="w"), Lease(queue="q")])
    # The store is not closed, as after a crash.
    successor = open_store(file, clock)
    successor.apply([CatchUpJournal()])
    events = recorded_events(file)
    assert [(event.kind, event.id, event.body) for event in events] == [
        ("pushed", 1, b"a"),
        ("pushed", 2, b"b"),
        ("pushed", 3, b"c"),
        ("pushed", 4, b"d"),
        ("leased", 1, None),
        ("leased", 2, None),
    ]
    assert [event.details for event in events[4:]] == [{"worker": "w"}, {}]


def test_events_of_two_queues_stay_in_order(file: Path, clock: Clock) -> None:
    store = open_store(file, clock)
    for text in "abc":
        push(store, text)
    push(store, "x", queue="other")
    assert recorded_kinds(file) == [("pushed", "q")] * 3 + [("pushed", "other")]


def test_another_process_records_the_first_queue_before_its_own(file: Path, clock: Clock) -> None:
    ours, theirs = open_store(file, clock), open_store(file, clock)
    for text in "abc":
        push(ours, text)
    push(theirs, "x", queue="other")
    assert recorded_kinds(file) == [("pushed", "q")] * 3 + [("pushed", "other")]
    push(ours, "d")
    ours.apply([CatchUpJournal()])
    assert recorded_kinds(file)[4:] == [("pushed", "q")]


def test_a_rolled_back_batch_loses_no_pending_events(file: Path, clock: Clock) -> None:
    store = open_store(file, clock)
    for text in "abc":
        push(store, text)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.prepare([Lease(queue="q")]) is None
        other.execute("ROLLBACK")
    (leased,) = store.apply([Lease(queue="q")])
    item = SettleItem(leased.messages[0].id, leased.messages[0].token)
    store.apply([Extend(queue="q", items=[item])])
    assert [kind for kind, _ in recorded_kinds(file)] == ["pushed"] * 3 + ["leased", "extended"]


def test_large_events_are_not_deferred(file: Path, clock: Clock) -> None:
    store = open_store(file, clock)
    for _ in range(5):
        push(store, "x" * 100_000)
    assert len(recorded_events(file)) == 5
    push(store, "x")
    assert (len(recorded_events(file)), store.journal_waits) == (5, True)


def test_a_journal_in_memory_does_not_grow(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.sqlite.store.JOURNAL_BACKLOG_BYTES", 1_000)
    store = open_store(Path(":memory:"), clock)
    for _ in range(50):
        push(store, "x" * 500)
        store.apply([CatchUpJournal()])
    first, following = store.journal_bounds()
    assert following > 40
    assert following - first < 5


def test_closing_records_all_pending_events(file: Path, clock: Clock) -> None:
    store = open_store(file, clock)
    for text in "abc":
        push(store, text)
    store.apply([Configure(queue="empty", changes={}, create=QueueOptions())])
    push(store, "d")
    store.close()
    with closing(sqlite3.connect(file)) as db:
        check_journal(db, file.with_name("queue.db.journal"))
        (pushed,) = db.execute("SELECT n_pushed FROM penstock_counter WHERE queue_id = 1").fetchone()
    assert pushed == 4
