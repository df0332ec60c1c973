"""Servers and consumers send heartbeats, and are removed from the list of workers when they stop."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.commands import Beat, Beaten
from penstock.core.model import Presence, WorkerInfo
from penstock.store import workers
from tests.conformance.postgres_support import events_of
from tests.conformance.support import START_MS, StoreUnderTest, ids

STALE_MS = 30_000


def consumer(name: str = "ada", **rest: Any) -> Presence:
    return Presence(kind="consumer", name=name, **rest)


def server(name: str = "one", started_at: int = START_MS, **rest: Any) -> Presence:
    return Presence(kind="server", name=name, started_at=started_at, **rest)


def beat(store: StoreUnderTest, *present: Presence, gone: tuple[Presence, ...] = ()) -> Beaten:
    beaten: Beaten = store.do(Beat(present=present, gone=gone, stale_ms=STALE_MS))
    return beaten


def listed(store: StoreUnderTest) -> list[str]:
    return [each.name for each in store.workers()]


def worker(store: StoreUnderTest, name: str = "ada") -> WorkerInfo:
    (found,) = [each for each in store.workers() if each.name == name]
    return found  # type: ignore[no-any-return]


def worker_events(store: StoreUnderTest) -> list[tuple[str, str]]:
    """Return the worker events in the journal."""
    return [(event.details["what"], event.details["worker"]) for event in events_of(store) if event.kind == "worker"]


def test_a_worker_that_sends_a_heartbeat_is_listed_with_its_details(store: StoreUnderTest) -> None:
    first = server("one", host="tallinn", pid=7, version="1.2")
    assert beat(store, first, consumer(server="one", queues=("q", "ns/"))).connected == ["ada", "one"]
    ada, one = store.workers()
    assert (one.kind, one.host, one.pid, one.version, one.server) == ("server", "tallinn", 7, "1.2", None)
    assert (ada.kind, ada.host, ada.pid, ada.server) == ("consumer", None, None, "one")
    assert (ada.started_at, ada.seen_at, ada.stale_at) == (START_MS, START_MS, START_MS + STALE_MS)
    assert ada.queues == {"q": 0, "ns/": 0}


def test_a_further_heartbeat_does_not_connect_again(store: StoreUnderTest) -> None:
    beat(store, server(), consumer())
    store.clock.advance(10_000)
    assert beat(store, server(), consumer(queues=("q",))) == Beaten([], [])
    ada = worker(store)
    assert (ada.started_at, ada.seen_at, ada.queues) == (START_MS, START_MS + 10_000, {"q": 0})


def test_another_workers_heartbeat_removes_a_silent_worker(shared: StoreUnderTest) -> None:
    other = shared.open_another()
    beat(shared, server("one"), consumer("ada"))
    shared.clock.advance(STALE_MS)
    assert other.apply([Beat(present=[server("two")])]) == [Beaten(["two"], [])]
    shared.clock.advance(1)
    assert other.apply([Beat(present=[server("two")])]) == [Beaten([], ["ada", "one"])]
    assert listed(shared) == ["two"]
    assert beat(shared, server("one")).connected == ["one"]


def test_a_worker_that_leaves_is_removed_at_once(store: StoreUnderTest) -> None:
    beat(store, server(), consumer())
    assert beat(store, gone=(server(), consumer(), consumer("unknown"))).disconnected == ["ada", "one"]
    assert listed(store) == []


def test_a_consumer_with_leases_stays_listed(store: StoreUnderTest) -> None:
    store.make(lease_ms=10 * STALE_MS)
    store.push("a")
    leased = store.lease_one(worker="ada")
    beat(store, consumer("ada"), consumer("bob"), server("one"))
    store.clock.advance(STALE_MS + 1)
    assert beat(store).disconnected == ["bob", "one"]
    assert worker(store).leases == 1
    store.ack(leased)
    assert beat(store).disconnected == ["ada"]


def test_an_expired_lease_does_not_keep_its_consumer_listed(store: StoreUnderTest) -> None:
    store.make(lease_ms=STALE_MS)
    store.push("a")
    store.lease_one(worker="ada")
    beat(store, consumer("ada"))
    store.clock.advance(STALE_MS + 1)
    assert beat(store).disconnected == ["ada"]


def test_a_silent_consumer_stays_for_an_hour_if_there_are_too_many_leases_to_check(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LEASES_MET", 2)
    store.make(lease_ms=100 * STALE_MS * 10)
    store.push("a", "b", "c")
    store.lease(limit=3)
    beat(store, consumer("ada"))
    store.clock.advance(STALE_MS + workers.DOUBT_MS)
    assert beat(store).disconnected == []
    store.clock.advance(1)
    assert beat(store).disconnected == ["ada"]


def test_leases_of_a_worker_are_counted_by_queue(store: StoreUnderTest) -> None:
    for queue in ("q", "r"):
        store.make(queue)
        store.push("a", "b", queue=queue)
    held = [*store.lease("q", 2, worker="ada"), *store.lease("r", 1, worker="ada")]
    store.lease("r", 1, worker="one")
    beat(store, consumer("ada", queues=("q", "s")), server("one"))
    assert (worker(store).leases, worker(store).queues) == (3, {"q": 2, "r": 1, "s": 0})
    assert worker(store, "one").queues == {"r": 1}
    assert ids(held[:2]) == ids(store.pages("leased"))
    store.ack(*held[:2])
    assert worker(store).queues == {"q": 0, "r": 1, "s": 0}


def test_a_restarted_server_replaces_the_earlier_one_of_its_name(store: StoreUnderTest) -> None:
    beat(store, server("one", START_MS, pid=7))
    again = server("one", START_MS + 5, pid=8)
    assert beat(store, again) == Beaten(["one"], ["one"])
    # If two servers share a name, the one that started last is listed.
    assert beat(store, server("one", START_MS, pid=7)) == Beaten([], [])
    assert worker(store, "one").pid == 8
    assert beat(store, gone=(server("one", START_MS),)).disconnected == []
    assert beat(store, gone=(again,)).disconnected == ["one"]


def test_the_journal_records_connects_and_disconnects(journalled: StoreUnderTest) -> None:
    beat(journalled, server("one"), consumer("ada"))
    journalled.make()
    beat(journalled, server("one"))
    journalled.clock.advance(STALE_MS + 1)
    beat(journalled, server("one", START_MS + 1))
    assert worker_events(journalled) == [
        ("connected", "ada"),
        ("connected", "one"),
        ("disconnected", "one"),
        ("disconnected", "ada"),
        ("connected", "one"),
    ]


def test_workers_are_listed_in_pages(store: StoreUnderTest) -> None:
    beat(store, server("z"), *(consumer(f"c{number}") for number in range(5)))
    first = store.workers(limit=4)
    rest = store.workers(after=workers.cursor(first[-1]), limit=4)
    assert [each.name for each in (*first, *rest)] == ["c0", "c1", "c2", "c3", "c4", "z"]
    assert store.workers(after=workers.cursor(rest[-1])) == []


def test_the_limit_on_workers_does_not_affect_listed_ones(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKERS_MAX", 2)
    beat(store, consumer("ada"), consumer("bob"))
    assert beat(store, consumer("ada"), consumer("cy"), server()) == Beaten([], [])
    beat(store, gone=(consumer("bob"),))
    assert beat(store, consumer("ada"), consumer("cy"), server()).connected == ["cy"]


def test_a_name_may_be_any_text(store: StoreUnderTest) -> None:
    name = "ünïcode/ with\0zero:and 'quotes\""
    beat(store, consumer(name, queues=(name,)))
    assert listed(store) == [name.replace("\0", "�")]
    assert beat(store, consumer(name)) == Beaten([], [])
    assert beat(store, gone=(consumer(name),)).disconnected == [name.replace("\0", "�")]
