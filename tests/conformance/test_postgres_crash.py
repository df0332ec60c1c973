"""Nothing acknowledged is lost or repeated when PostgreSQL or its connection fails at a critical moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from penstock.core.commands import Ack, Lease, SettleItem
from penstock.errors import PenstockError, StoreBusy, StoreUnreachable
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.store import UNCOMPACTED_MAX
from penstock.store.postgres.transaction import LEASING
from tests.conformance.cutting import Cutter
from tests.conformance.postgres_support import PostgresUnderTest
from tests.conformance.support import eventually, push_command, texts
from tests.postgres import Cluster, cluster, drop_schema, new_schema


@pytest.fixture
def schema() -> Iterator[str]:
    name = new_schema()
    yield name
    drop_schema(name)


def open_through(cutter: Cutter, schema: str) -> PostgresStore:
    return PostgresStore(f"postgresql://postgres@/postgres?host={cutter.folder}", schema=schema)


def test_a_queue_is_locked_even_if_another_thread_caches_it_meanwhile(on_server: PostgresUnderTest) -> None:
    on_server.push("a")
    url, schema = cluster().url, on_server.schema
    new = PostgresStore(url, schema=schema, busy_ms=1_000)
    refused: list[PenstockError] = []

    def lease() -> None:
        try:
            new.apply([Lease(queue="q")])
        except PenstockError as error:
            refused.append(error)

    with psycopg.connect(url) as leasing, psycopg.connect(url) as looking:
        ((queue_id,),) = leasing.execute(f"SELECT id FROM {schema}.queue".encode()).fetchall()
        leasing.rollback()
        key = new._context.lock_key(LEASING, queue_id)
        leasing.execute(f"SELECT {schema}.enter(ARRAY[{key}])".encode())
        looking.execute(f"LOCK TABLE {schema}.queue IN ACCESS EXCLUSIVE MODE".encode())
        thread = threading.Thread(target=lease)
        thread.start()
        waiting = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.queue'::regclass"
        eventually(lambda: leasing.execute(waiting.encode()).fetchone() == (1,))
        # Simulate a push in another lane that cached the queue a little earlier.
        new._context.learn("q", queue_id)
        looking.rollback()
        thread.join()
    new.close()
    assert [type(error) for error in refused] == [StoreBusy]
    assert on_server.drain() == ["a"]


def test_a_committed_batch_is_not_repeated_when_the_compaction_fails(schema: str) -> None:
    with Cutter(cluster().folder, cut_before=True, at=b"WITH taken AS") as cutter:
        store = open_through(cutter, schema)
        store._context.uncompacted_counters = UNCOMPACTED_MAX
        cutter.armed.set()
        store.apply([push_command("once")])
        assert cutter.cuts == 1
        assert texts(store.peek("q", limit=9)[0]) == ["once"]
        store.close()


@pytest.mark.parametrize("taken", [False, True], ids=["its id is free", "its id is reused"])
def test_a_commit_lost_in_a_crash_is_not_confused_with_another(taken: bool) -> None:
    own = Cluster()

    def crash() -> None:
        own.stop()
        own.start()
        with psycopg.connect(own.url, autocommit=True) as connection:
            for _ in range(100 * taken):
                connection.execute("SELECT pg_current_xact_id()")

    try:
        with psycopg.connect(own.url, autocommit=True) as connection:
            # Without background writes, only data that a commit waits for reaches the disk.
            connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            connection.execute("ALTER SYSTEM SET autovacuum = off")
        own.stop()
        own.start()
        before = PostgresStore(own.url)
        before.apply([push_command("a")])
        (leased,) = before.apply([Lease(queue="q")])
        before.apply([push_command("b")])
        before.close()
        with Cutter(own.folder, cut_before=True, meanwhile=crash) as cutter:
            store = open_through(cutter, "penstock")
            cutter.armed.set()
            ack = Ack(queue="q", items=[SettleItem(message.id, message.token) for message in leased.messages])
            if taken:
                with pytest.raises(StoreUnreachable) as refused:
                    store.apply([ack])
                assert refused.value.maybe_done
            else:
                assert store.apply([ack])[0].results == ["ok"]
            assert cutter.cuts == 1
            info = store.find_queue("q")
            assert info is not None
            assert (info.leased, info.totals.acked) == ((1, 0) if taken else (0, 1))
            store.close()
    finally:
        own.remove()
