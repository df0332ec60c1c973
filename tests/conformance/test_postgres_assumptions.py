"""Batches that start from cached queues and leases notice what another process has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import psycopg
import pytest

from penstock.core.commands import (
    Ack,
    Configure,
    Drop,
    Lease,
    Nack,
    Pause,
    Push,
    PushOutcome,
    Settled,
    SettleItem,
    Sweep,
    SwitchJournal,
)
from penstock.core.latency import SERVICE, TOTAL
from penstock.core.model import Delivery, PushItem, QueueOptions, State
from penstock.errors import InvariantBroken, QueueFull, StoreUnreachable, UnknownQueue
from penstock.postgres.pipeline import PipelinedConnection, Statement
from penstock.store.interface import Store
from penstock.store.postgres import PostgresStore
from tests.conformance.postgres_support import PostgresUnderTest, Tables, events_of
from tests.conformance.support import ids, texts


class RoundTrips:
    def __init__(self) -> None:
        self.count = 0

    def of(self, store: PostgresUnderTest, command: object) -> int:
        before = self.count
        store.do(command)  # type: ignore[arg-type]
        return self.count - before


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> RoundTrips:
    counted, run = RoundTrips(), PipelinedConnection.run

    def count(self: PipelinedConnection, statements: object) -> object:
        counted.count += 1
        return run(self, statements)  # type: ignore[arg-type]

    monkeypatch.setattr(PipelinedConnection, "run", count)
    return counted


def push(*payloads: str, queue: str = "q") -> Push:
    return Push(queue=queue, messages=[PushItem(payload=each.encode()) for each in payloads])


def ack(*leased: Delivery) -> Ack:
    return Ack(queue=leased[0].queue, items=[SettleItem(each.id, each.token) for each in leased])


def lease_with_cached_queue(store: PostgresUnderTest, *payloads: str) -> list[Delivery]:
    """Cache the queue, and return leased messages."""
    store.make()
    store.push(*payloads or ("a", "b", "c"))
    return store.lease(limit=10)


def test_a_push_and_an_ack_take_one_round_trip_and_a_lease_two(
    on_server: PostgresUnderTest, round_trips: RoundTrips
) -> None:
    lease_with_cached_queue(on_server)
    assert round_trips.of(on_server, push("d", "e", "f")) == 1
    assert round_trips.of(on_server, Lease(queue="q", limit=3)) == 2
    on_server.push("g", "h")
    leased = on_server.lease(limit=2)
    assert round_trips.of(on_server, ack(leased[0])) == 1
    assert round_trips.of(on_server, ack(leased[1])) == 1
    assert on_server.counts() == {"leased": 6}


def test_a_push_notices_options_that_another_process_changed(on_server: PostgresUnderTest) -> None:
    lease_with_cached_queue(on_server)
    on_server.open_another().apply([Configure(queue="q", changes={"max_size": 3})])
    with pytest.raises(QueueFull):
        on_server.do(push("d"))


def test_a_push_notices_a_queue_that_was_dropped(on_server: PostgresUnderTest) -> None:
    lease_with_cached_queue(on_server)
    on_server.open_another().apply([Drop(queue="q", force=True)])
    with pytest.raises(UnknownQueue):
        on_server.do(push("d"))


def test_a_push_notices_a_queue_that_was_recreated(on_server: PostgresUnderTest) -> None:
    leased = lease_with_cached_queue(on_server)
    another = on_server.open_another()
    another.apply([Drop(queue="q", force=True)])
    another.apply([Configure(queue="q", changes={}, create=QueueOptions())])
    on_server.do(push("new"))
    assert on_server.ack(*leased) == [Settled.UNKNOWN] * 3
    assert texts(on_server.lease(limit=10)) == ["new"]


def test_a_paused_queue_accepts_pushes_and_acks(on_server: PostgresUnderTest) -> None:
    leased = lease_with_cached_queue(on_server)
    on_server.open_another().apply([Pause(queue="q", paused=True)])
    on_server.do(push("d"))
    assert on_server.ack(*leased) == [Settled.OK] * 3
    assert on_server.lease() == []
    assert on_server.counts() == {"ready": 1}


def test_a_push_notices_a_journal_that_another_process_switched_on(unjournalled: PostgresUnderTest) -> None:
    leased = lease_with_cached_queue(unjournalled)
    unjournalled.open_another().apply([SwitchJournal(on=True)])
    (id_,) = (receipt.id for receipt in unjournalled.do(push("d")).receipts)
    assert unjournalled.ack(*leased) == [Settled.OK] * 3
    journalled = [(str(event.kind), event.id) for event in events_of(unjournalled) if event.id]
    assert [id_ for _, id_ in journalled] == [id_, *ids(leased)]


@pytest.mark.parametrize("ms", [-60_000, 60, 3_600_000])
def test_a_push_after_the_clock_was_set_comes_last(on_server: PostgresUnderTest, ms: int) -> None:
    on_server.ack(*lease_with_cached_queue(on_server))
    on_server.do(push("first"))
    on_server.clock.set(on_server.clock() + ms)
    on_server.do(push("second"))
    on_server.send(PushItem(payload=b"third", ttl_ms=10_000_000))
    assert texts(on_server.lease(limit=2)) == ["first", "second"]


def test_a_wrong_estimate_of_the_time_is_noticed(on_server: PostgresUnderTest) -> None:
    store = PostgresStore(str(on_server.path), schema=on_server.schema, journal=True)
    try:
        store.apply([Configure(queue="real", changes={}, create=QueueOptions())])
        store.apply([push("a", queue="real")])
        # Simulate a local clock that was set back by a day.
        store._context.ahead_ms -= 86_400_000
        known = store._context.known["real"]
        store._context.known["real"] = known._replace(checked_at=known.checked_at - 86_400_000)
        (pushed,) = store.apply([push("b", queue="real")])
        with psycopg.connect(str(on_server.path)) as connection:
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()
        assert row is not None
        assert abs(int(row[0]) - pushed.receipts[0].created_at) < 60_000
        store.apply([Drop(queue="real", force=True)])
    finally:
        store.close()


def test_pushes_alone_still_expire_overdue_messages(on_server: PostgresUnderTest) -> None:
    lease_with_cached_queue(on_server)
    on_server.send(PushItem(payload=b"short", ttl_ms=500))
    on_server.do(push("d"))
    on_server.clock.advance(1_001)
    on_server.do(push("e"))
    assert on_server.counts() == {"ready": 2, "leased": 3}


def test_an_ack_after_its_lease_has_expired_is_stale(on_server: PostgresUnderTest) -> None:
    leased = lease_with_cached_queue(on_server)
    on_server.clock.advance(30_000)
    assert on_server.ack(*leased) == [Settled.STALE] * 3
    assert len(on_server.lease(limit=10)) == 3


def test_a_lease_that_another_process_settled_in_part_is_not_acked_whole(on_server: PostgresUnderTest) -> None:
    a, b, c = lease_with_cached_queue(on_server)
    another = on_server.open_another()
    (done,) = another.apply([ack(b)])
    assert done.results == [Settled.OK]
    another.apply([Nack(queue="q", items=[SettleItem(c.id, c.token, delay_ms=5_000)])])
    assert on_server.ack(a, b, c) == [Settled.OK, Settled.OK, Settled.STALE]
    assert on_server.counts() == {"scheduled": 1}
    assert on_server.state(c.id) is State.SCHEDULED


def run_concurrently(*calls: Callable[[], list[Settled]]) -> list[list[Settled]]:
    """Run these calls in threads that start together."""
    results: list[list[Settled]] = [[] for _ in calls]
    begin = threading.Barrier(len(calls))

    def run(number: int) -> None:
        begin.wait()
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def ack_one_by_one(store: Store, leased: list[Delivery]) -> list[Settled]:
    return [result for each in leased for result in store.apply([ack(each)])[0].results]


def test_two_processes_ack_parts_of_a_lease_at_the_same_time(on_server: PostgresUnderTest) -> None:
    another = on_server.open_another()
    on_server.make()
    for _ in range(10):
        on_server.push(*map(str, range(20)))
        leased = on_server.lease(limit=20)
        results = run_concurrently(
            partial(ack_one_by_one, on_server.store, leased[::2]), partial(ack_one_by_one, another, leased[1::2])
        )
        assert results == [[Settled.OK] * 10] * 2
        assert on_server.counts() == {}


def test_two_processes_settle_the_same_messages_and_one_wins(on_server: PostgresUnderTest) -> None:
    another = on_server.open_another()
    on_server.make()
    for _ in range(10):
        on_server.push(*map(str, range(6)))
        leased = on_server.lease(limit=6)
        items = [SettleItem(each.id, each.token, dead=True) for each in leased[2:4]]
        nack = Nack(queue="q", items=items)
        acked, nacked = run_concurrently(
            partial(on_server.ack, *leased),
            lambda nack=nack: another.apply([nack])[0].results,  # type: ignore[misc]
        )
        assert acked[:2] + acked[4:] == [Settled.OK] * 4
        for one, other in zip(acked[2:4], nacked, strict=True):
            assert (one is Settled.OK) != (other is Settled.OK)
        on_server.check()


def test_a_range_with_a_wrong_count_settles_nothing(on_server: PostgresUnderTest) -> None:
    leased = lease_with_cached_queue(on_server)
    with closing(Tables(str(on_server.path), on_server.schema)) as tables:
        tables.execute("UPDATE penstock_lease_range SET count = 1")
        refused, pushed = on_server.store.apply([ack(*leased), push("d")])
        assert isinstance(refused, InvariantBroken)
        assert isinstance(pushed, PushOutcome)
        tables.execute("UPDATE penstock_lease_range SET count = 3")
    assert on_server.ack(*leased) == [Settled.OK] * 3


def test_a_queue_is_loaded_for_a_while_after_a_wrong_assumption(
    on_server: PostgresUnderTest, round_trips: RoundTrips
) -> None:
    lease_with_cached_queue(on_server)
    on_server.open_another().apply([Configure(queue="q", changes={"max_attempts": 3})])
    assert round_trips.of(on_server, push("d")) == 3
    assert round_trips.of(on_server, push("e")) == 2


def test_latencies_of_a_retried_ack_count_once(on_server: PostgresUnderTest) -> None:
    a, b, c = lease_with_cached_queue(on_server)
    on_server.open_another().apply([ack(b)])
    assert on_server.ack(a, b, c) == [Settled.OK] * 3
    counts = on_server.store._context.latencies._unwritten  # type: ignore[attr-defined]
    assert [sum(found.values()) for (_, kind), found in counts.items() if kind in (SERVICE, TOTAL)] == [2, 2]


def test_an_empty_push_succeeds(on_server: PostgresUnderTest) -> None:
    on_server.make()
    on_server.push("a")
    (leased,) = on_server.lease()
    on_server.clock.advance(900)
    on_server.do(Nack(queue="q", items=[SettleItem(leased.id, leased.token)]))
    on_server.clock.advance(200)
    assert on_server.do(Push(queue="q", messages=[])).receipts == []


@pytest.mark.parametrize("pause_ms", [0, 3_600_000])
def test_a_push_is_not_repeated_if_its_mark_may_be_deleted(
    on_server: PostgresUnderTest, monkeypatch: pytest.MonkeyPatch, pause_ms: int
) -> None:
    """The process is suspended between the commit and its reply, while another process sweeps."""
    lease_with_cached_queue(on_server)
    another, run = on_server.open_another(), PipelinedConnection.run
    lost: list[bool] = []

    def run_then_disconnect(self: PipelinedConnection, statements: Sequence[Statement]) -> object:
        answer = run(self, statements)
        if not lost and any(b".mark (mark, first_id" in statement.sql for statement in statements):
            lost.append(True)
            self.connection.close()
            on_server.clock.advance(pause_ms)
            another.apply([Sweep()])
            raise psycopg.OperationalError("the connection was lost")
        return answer

    monkeypatch.setattr(PipelinedConnection, "run", run_then_disconnect)
    if pause_ms:
        with pytest.raises(StoreUnreachable) as caught:
            on_server.do(push("d"))
        assert caught.value.maybe_done
    else:
        on_server.do(push("d"))
    assert on_server.counts()["ready"] == (1 if not pause_ms else 4)


def test_acks_of_many_leases_do_not_deadlock(on_server: PostgresUnderTest) -> None:
    another = on_server.open_another()
    on_server.make()
    on_server.push(*map(str, range(120)))
    batches = [on_server.lease(limit=4) for _ in range(30)]

    def settle(store: Store, number: int, step: int) -> list[Settled]:
        acks = [ack(batch[number]) for batch in batches[::step]]
        return [result for outcome in store.apply(acks) for result in outcome.results]

    with psycopg.connect(str(on_server.path), autocommit=True) as connection:
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        before = connection.execute(deadlocks).fetchone()
        for number in (0, 2):
            results = run_concurrently(
                partial(settle, on_server.store, number, 1), partial(settle, another, number + 1, -1)
            )
            assert results == [[Settled.OK] * 30] * 2
        assert connection.execute(deadlocks).fetchone() == before
    assert on_server.counts() == {}
