"""A store with rows in every table, and a snapshot of everything that can be read from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.core.commands import AddKey, Pause, SetSecret
from penstock.core.model import Delivery, PushItem, State
from penstock.store.interface import Store
from penstock.store.postgres import PostgresStore
from penstock.store.sqlite import SqliteStore
from tests.conformance.postgres_support import PostgresUnderTest
from tests.conformance.support import MINUTE_MS, Clock, StoreUnderTest
from tests.postgres import cluster, new_schema

HOUR_MS = 60 * MINUTE_MS


class File(StoreUnderTest):
    """A SQLite file without a journal. It is opened on demand, because a migration needs exclusive access to it."""

    _journal = False

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.persists = True
        self.clock = clock
        self._opened: list[Store] = []

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def open(self) -> File:
        self.store = self.open_another()
        return self

    def open_another(self) -> Store:
        store = SqliteStore(self.path, clock=self.clock, durability="relaxed", journal=self._journal)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


class Database(PostgresUnderTest):
    """A PostgreSQL schema, initially without a journal. It is opened on demand."""

    _journal = False

    def __init__(self, clock: Clock) -> None:
        self.schema = new_schema()
        self.path = cluster().url
        self.persists = True
        self.clock = clock
        self._opened: list[Store] = []

    @property
    def url(self) -> str:
        return f"{self.path}&schema={self.schema}"

    def open(self) -> Database:
        self.store = self.open_another()
        return self

    def open_another(self) -> PostgresStore:
        store = PostgresStore(str(self.path), schema=self.schema, clock=self.clock, journal=self._journal)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


def fill(store: StoreUnderTest) -> dict[str, Delivery]:
    """Fill the store with messages in every state and one of everything else. Return the leases that are still held."""
    clock = store.clock
    store.make("q", lease_ms=HOUR_MS, max_attempts=2, backoff_ms=1, archive_ms=None)
    store.push("done", "again", "held", "long", queue="q")
    done, again, held, extended = store.lease("q", 4, worker="w")
    store.ack(done)
    store.extend(extended, lease_ms=2 * HOUR_MS)
    store.nack(again, error="not yet", delay_ms=1)
    clock.advance(MINUTE_MS)
    store.sweep()
    store.bury("bad", "worse", queue="buried", error="broken", ttl_ms=HOUR_MS)
    (dead,) = store.lease("buried.dlq", 1, lease_ms=HOUR_MS)
    clock.advance(3 * MINUTE_MS)
    store.push("late", queue="q", delay_ms=HOUR_MS)
    store.push("high", queue="q", priority=7, headers={"a": "ü", "b": "1"})
    store.push("short", queue="ns/task/x", ttl_ms=HOUR_MS)
    store.push("plain", "plainer", queue="ns/task/x")
    store.push("once", queue="keyed", key="k")
    store.ack(*store.lease("keyed", 1, lease_ms=HOUR_MS))
    store.send(PushItem(payload=b"\x00\xff", key="everywhere"), queue="keyed", global_keys=True)
    store.make("ns/task/limited", max_size=10, max_in_flight=1, push_rate=5, push_burst=7, journal="off")
    store.push("counted", queue="ns/task/limited")
    store.make("still", dlq=False)
    store.do(Pause(queue="still", paused=True))
    store.do(AddKey(queue="q", id="abc", name="worker", hash=b"\x01\x00", rights=["read", "write"]))
    store.do(SetSecret(queue="q", secret="s3cret"))
    store.make("gone")
    store.push("forgotten", queue="gone")
    store.take("gone")
    clock.advance(MINUTE_MS)
    store.sweep()
    store.push("last", queue="q")
    return {"held": held, "extended": extended, "dead": dead}


def snapshot(store: StoreUnderTest) -> dict[str, Any]:
    """Return everything that can be read from a store."""
    contents: dict[str, Any] = {"store_id": store.store.store_id, "key": store.store.find_key("abc")}
    for info in store.store.list_queues(limit=1_000):
        messages = {state: store.pages(state, queue=info.name) for state in State}
        keys, secret = store.store.list_keys(info.name), store.store.find_secret(info.name)
        contents[info.name] = (info, store.store.stats(info.name), messages, keys, secret)
    return contents
