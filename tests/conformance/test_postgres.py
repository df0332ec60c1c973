"""PostgreSQL only: lost connections, many servers on one database, and pushes in the caller's transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.core.commands import Ack, Lease, SettleItem, Sweep
from penstock.core.model import PushItem, system_clock
from penstock.errors import InvalidInput, StoreUnreachable, Unsupported
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.context import SLACK_MS
from penstock.store.postgres.transaction import PostgresTransaction
from penstock.store.postgres.transitions import PATIENCE_MS
from tests.conformance.cutting import Cutter
from tests.conformance.postgres_support import PostgresUnderTest
from tests.conformance.support import eventually, ids, push_command, texts
from tests.postgres import Cluster, cluster, drop_schema, new_schema


@pytest.fixture
def mine(on_server: PostgresUnderTest) -> Iterator[psycopg.Connection]:
    """The caller's own connection."""
    with psycopg.connect(cluster().url) as connection:
        connection.execute("CREATE TEMPORARY TABLE mine (x int)")
        connection.commit()
        yield connection


@pytest.fixture
def schema() -> Iterator[str]:
    name = new_schema()
    yield name
    drop_schema(name)


def test_a_delayed_message_committed_after_it_was_due_is_leased_at_once(
    on_server: PostgresUnderTest, mine: psycopg.Connection
) -> None:
    clock = on_server.clock
    on_server.make()
    another = on_server.open_another()
    on_server.push_on(mine, push_command("late", delay_ms=1_000))
    clock.advance(5_000)
    on_server.push("early")
    assert on_server.drain() == ["early"]
    clock.advance(100)
    (nothing,) = another.apply([Lease(queue="q")])
    assert not nothing.messages + on_server.lease()
    mine.commit()
    eventually(lambda: bool(another.apply([Lease(queue="q")])[0].messages))


def test_a_slow_commit_of_a_message_already_due_wakes_others(
    on_server: PostgresUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = on_server.clock
    on_server.make()
    another = on_server.open_another()
    commit = PostgresTransaction.commit

    def commit_slowly(tx: PostgresTransaction) -> None:
        if tx.schedules:
            clock.advance(5_000)
            another.apply([Lease(queue="q")])
            clock.advance(100)
            another.apply([Lease(queue="q")])
            time.sleep(2 * SLACK_MS / 1000)
        commit(tx)

    monkeypatch.setattr(PostgresTransaction, "commit", commit_slowly)
    on_server.send(PushItem(payload=b"late", delay_ms=1_000))
    eventually(lambda: bool(another.apply([Lease(queue="q")])[0].messages))


def test_ten_servers_that_start_at_once_create_one_schema(schema: str) -> None:
    stores: list[PostgresStore] = []
    url = cluster().url

    def start() -> None:
        stores.append(PostgresStore(url, schema=schema))

    threads = [threading.Thread(target=start) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.store_id for store in stores}) == 1
    assert len(stores) == 10
    for number, store in enumerate(stores):
        store.apply([push_command(str(number))])
    assert len(stores[0].apply([Lease(queue="q", limit=20)])[0].messages) == 10
    for store in stores:
        store.close()


def test_a_schema_in_the_url_is_used_and_validated(schema: str) -> None:
    store = PostgresStore(f"{cluster().url}&schema={schema}")
    assert schema in store.where
    store.close()
    with pytest.raises(InvalidInput):
        PostgresStore(cluster().url, schema="no such; name")


def test_a_backup_is_refused_in_favour_of_pg_dump(on_server: PostgresUnderTest, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="pg_dump"):
        on_server.backup(tmp_path / "copy")
    on_server.shorten_log()


def test_time_is_taken_from_the_database(schema: str) -> None:
    store = PostgresStore(cluster().url, schema=schema)
    before = system_clock()
    (pushed,) = store.apply([push_command("a")])
    assert abs(pushed.receipts[0].created_at - before) < 60_000
    assert abs(store.clock() - system_clock()) < 60_000
    store.close()


def test_producers_of_many_servers_keep_their_order(on_server: PostgresUnderTest) -> None:
    stores = [on_server.store, on_server.open_another(), on_server.open_another()]
    on_server.make(lease_ms=10**8)
    taken: list[bytes] = []

    def produce(number: int) -> None:
        for step in range(60):
            stores[number].apply([push_command(f"{number} {step}")])

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    while len(taken) < 180:
        (leased,) = stores[0].apply([Lease(queue="q", limit=7)])
        taken += [message.payload for message in leased.messages]
    for thread in threads:
        thread.join()
    for number in range(len(stores)):
        steps = [int(payload.split()[1]) for payload in taken if payload.startswith(b"%d " % number)]
        assert steps == list(range(60))


def test_a_store_does_not_wake_itself(on_server: PostgresUnderTest) -> None:
    other = on_server.open_another()
    before, others = on_server.version(), other.version()
    for number in range(50):
        on_server.push(str(number))
    eventually(lambda: other.version() != others)
    assert on_server.version() == before


def test_an_idle_queue_leaves_the_list_of_busy_queues(on_server: PostgresUnderTest) -> None:
    on_server.push("a", queue="n/t/x")
    on_server.push("b", queue="n/t/y")
    on_server.ack(on_server.lease_one("n/t/x"))
    on_server.do(Sweep())
    with psycopg.connect(cluster().url) as connection:
        busy = connection.execute(f"SELECT name FROM {on_server.schema}.busy".encode()).fetchall()
    assert busy == [("n/t/y",)]
    on_server.push("c", queue="n/t/x")
    assert texts(on_server.try_lease(scope="n", limit=5).messages) == ["b", "c"]


def test_counters_are_the_same_before_and_after_folding(on_server: PostgresUnderTest) -> None:
    for _ in range(20):
        on_server.push("a", "b")
        on_server.ack(*on_server.lease(limit=2))
    on_server.push("c")
    before, rates = on_server.info(), on_server.stats("q").rates
    on_server.do(Sweep())
    assert (on_server.info(), on_server.stats("q").rates) == (before, rates)
    with psycopg.connect(cluster().url) as connection:
        rows = connection.execute(f"SELECT count(*) FROM {on_server.schema}.counter".encode()).fetchone()
    assert rows == (1,)
    assert on_server.drain() == ["c"]


def test_terminated_connections_are_reopened(on_server: PostgresUnderTest) -> None:
    on_server.push("a")
    with psycopg.connect(cluster().url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'")
    assert on_server.push("b")
    assert on_server.drain() == ["a", "b"]
    assert on_server.counts() == {"leased": 2}


def test_an_unreachable_database_is_reported_and_recovers(schema: str) -> None:
    own = Cluster()
    try:
        store = PostgresStore(own.url, schema=schema)
        store.apply([push_command("a")])
        own.stop()
        for _ in range(3):
            with pytest.raises(StoreUnreachable) as refused:
                store.apply([push_command("lost")])
            assert not refused.value.maybe_done
        with pytest.raises(StoreUnreachable):
            store.peek("q")
        own.start()

        def is_back() -> bool:
            try:
                return len(store.peek("q", limit=9)[0]) == 1
            except StoreUnreachable:
                return False

        eventually(is_back)
        store.apply([push_command("b")])
        assert texts(store.peek("q", limit=9)[0]) == ["a", "b"]
        store.close()
    finally:
        own.remove()


@pytest.mark.parametrize("kept", [True, False])
def test_a_commit_with_a_lost_response_is_neither_lost_nor_repeated(schema: str, kept: bool) -> None:
    before = PostgresStore(cluster().url, schema=schema)
    before.apply([push_command("before")])
    (leased,) = before.apply([Lease(queue="q")])
    before.close()
    with Cutter(cluster().folder, cut_before=not kept) as cutter:
        store = PostgresStore(f"postgresql://postgres@/postgres?host={cutter.folder}", schema=schema)
        cutter.armed.set()
        items = [SettleItem(message.id, message.token) for message in leased.messages]
        assert store.apply([Ack(queue="q", items=items)])[0].results == ["ok"]
        assert cutter.cuts == 1
        info = store.find_queue("q")
        assert info is not None
        assert (info.leased, info.totals.acked) == (0, 1)
        store.close()


@pytest.mark.parametrize("kept", [True, False])
def test_a_push_with_a_lost_response_is_done_once_and_returns_its_id(schema: str, kept: bool) -> None:
    PostgresStore(cluster().url, schema=schema).close()
    with Cutter(cluster().folder, cut_before=not kept) as cutter:
        store = PostgresStore(f"postgresql://postgres@/postgres?host={cutter.folder}", schema=schema)
        cutter.armed.set()
        (first,) = store.apply([push_command("once")])
        assert cutter.cuts == 1
        # The queue is cached now, so the push and its commit are one round trip.
        store._pool.drop_idle()
        cutter.at = b".take_ids"
        cutter.armed.set()
        (second,) = store.apply([push_command("twice")])
        assert cutter.cuts == 2
        found, _ = store.peek("q", limit=9)
        assert texts(found) == ["once", "twice"]
        assert ids(found) == [first.receipts[0].id, second.receipts[0].id]
        store.close()


@pytest.mark.parametrize("store_fixture", ["on_server", "unjournalled"])
def test_a_slow_wake_at_query_is_not_repeated(request: pytest.FixtureRequest, store_fixture: str) -> None:
    store: PostgresUnderTest = request.getfixturevalue(store_fixture)
    store.push("a")
    (leased,) = store.lease(lease_ms=9_000)
    store._context.slow_seconds = 0.0
    assert store.try_lease().wake_at == leased.leased_until
    assert store.try_lease().wake_at == store.clock() + PATIENCE_MS
