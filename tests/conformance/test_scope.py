"""Leasing from all queues of a namespace or task."""

from __future__ import annotations

import psycopg

from penstock.core.commands import Lease, Pause
from penstock.store.postgres.busy_queues import LISTED_MANY
from tests.conformance.postgres_support import PostgresUnderTest
from tests.conformance.support import Clock, StoreUnderTest, push_command, texts


def scope(store: StoreUnderTest, name: str, limit: int = 10) -> list[str]:
    return texts(store.try_lease(scope=name, limit=limit).messages)


def test_a_scope_covers_the_queues_below_it_and_no_others(store: StoreUnderTest) -> None:
    for queue in ("ns/a/x", "ns/a/y", "ns/b/z", "ns", "nsx/a/x", "ns0/a/x", "flat", "ns-/a/x"):
        store.push(queue, queue=queue)
    assert scope(store, "ns/a") == ["ns/a/x", "ns/a/y"]
    assert scope(store, "ns") == ["ns/b/z"]
    assert scope(store, "n") == []
    assert scope(store, "flat") == []
    assert scope(store, "nsx") == ["nsx/a/x"]


def test_an_unknown_scope_is_empty(store: StoreUnderTest) -> None:
    outcome = store.do(Lease(scope="nowhere"))
    assert (outcome.messages, outcome.wake_at, outcome.more) == ([], None, False)


def test_the_oldest_message_comes_first_whatever_its_queue(store: StoreUnderTest, clock: Clock) -> None:
    for payload, queue in [("1", "n/t/b"), ("2", "n/t/a"), ("3", "n/u/c"), ("4", "n/t/b"), ("5", "n/t/a")]:
        store.push(payload, queue=queue)
        clock.advance(1)
    assert scope(store, "n", limit=3) == ["1", "2", "3"]
    assert scope(store, "n") == ["4", "5"]


def test_queue_priority_comes_before_age(store: StoreUnderTest, clock: Clock) -> None:
    store.make("n/t/low", priority=-1)
    store.make("n/t/high", priority=5)
    for payload, queue in [("1", "n/t/low"), ("2", "n/t/mid"), ("3", "n/t/high"), ("4", "n/t/mid"), ("5", "n/t/high")]:
        store.push(payload, queue=queue)
        clock.advance(1)
    assert scope(store, "n") == ["3", "5", "2", "4", "1"]


def test_each_queue_keeps_its_own_order(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a1", queue="n/t/a")
    clock.advance(1)
    store.push("b1", queue="n/t/b")
    clock.advance(1)
    store.push("a2 first", queue="n/t/a", priority=1)
    assert scope(store, "n") == ["b1", "a2 first", "a1"]


def test_each_message_names_its_own_queue_and_can_be_settled_there(store: StoreUnderTest) -> None:
    store.push("x", queue="n/t/x")
    store.push("y", queue="n/t/y")
    for message in store.try_lease(scope="n", limit=5).messages:
        assert message.queue == "n/t/" + message.payload.decode()
        assert store.ack(message) == ["ok"]


def test_a_scope_respects_pause_window_and_max_in_flight(store: StoreUnderTest, clock: Clock) -> None:
    store.make("n/t/bound", max_in_flight=1)
    store.make("n/t/window", window_ms=50)
    for queue in ("n/t/bound", "n/t/window", "n/t/paused"):
        store.push("1", "2", queue=queue)
    store.do(Pause(queue="n/t/paused"))
    leased = store.try_lease(scope="n", limit=10, lease_ms=1_000).messages
    assert [(m.queue, m.payload) for m in leased] == [("n/t/bound", b"1")]
    assert store.try_lease(scope="n").wake_at == clock.now + 50
    clock.advance(50)
    assert [m.queue for m in store.try_lease(scope="n", limit=10).messages] == ["n/t/window"] * 2


def test_a_scope_includes_due_messages_and_expired_leases(store: StoreUnderTest, clock: Clock) -> None:
    store.push("due", queue="n/t/a", delay_ms=10)
    store.push("lapsed", queue="n/t/b")
    store.lease("n/t/b", lease_ms=20)
    assert store.try_lease(scope="n").wake_at == clock.now + 10
    clock.advance(20)
    assert scope(store, "n") == ["lapsed", "due"]


def test_a_scope_excludes_dead_letters(store: StoreUnderTest) -> None:
    store.make("n/t/a", max_attempts=1)
    store.bury("dead", queue="n/t/a")
    assert scope(store, "n") == []
    assert texts(store.lease("n/t/a.dlq")) == ["dead"]
    assert scope(store, "n") == []


def test_a_message_pushed_in_the_same_batch_is_leased(store: StoreUnderTest) -> None:
    for payload in ("first", "second"):
        _, leased = store.apply([push_command(payload, "n/t/a"), Lease(scope="n", limit=5)])
        assert texts(leased.messages) == [payload]
        assert store.ack(*leased.messages) == ["ok"]
        assert scope(store, "n") == []


def test_emptied_queues_are_skipped_until_they_are_used_again(store: StoreUnderTest) -> None:
    names = [f"n/t/q{number:03}" for number in range(LISTED_MANY + 6)]
    for name in names:
        store.push("old", queue=name)
        store.ack(store.lease_one(name))
    store.make("n/t/held")
    store.push("held", queue="n/t/held")
    held = store.lease_one("n/t/held", lease_ms=5_000)
    store.push("new", queue=names[-1])
    assert texts(store.try_lease(scope="n").messages) == ["new"]
    store.push("newer", queue=names[0])
    assert texts(store.try_lease(scope="n").messages) == ["newer"]
    store.clock.advance(5_000)
    assert [message.id for message in store.try_lease(scope="n").messages] == [held.id]


def test_a_push_in_the_callers_transaction_puts_its_queue_back_on_the_list(
    on_server: PostgresUnderTest,
) -> None:
    names = [f"n/t/q{number:03}" for number in range(LISTED_MANY + 6)]
    for name in names:
        on_server.push("old", queue=name)
        on_server.ack(on_server.lease_one(name))
    with psycopg.connect(str(on_server.path)) as connection:
        on_server.push_on(connection, push_command("late", names[3]))
        assert on_server.try_lease(scope="n").messages == []
    on_server.sweep()
    assert texts(on_server.try_lease(scope="n").messages) == ["late"]
