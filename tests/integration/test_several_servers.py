"""Several servers on one PostgreSQL: each sees the others' changes at once, and clients survive the loss of a server or
an outage of the database."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import UnknownQueue
from penstock.config import Settings
from penstock.core.commands import Lease, Sweep
from tests.conformance.cutting import Cutter
from tests.conformance.postgres_support import PostgresUnderTest
from tests.conformance.support import eventually
from tests.crash.relay import Relay
from tests.integration.serving import Answer, Running, running
from tests.postgres import Cluster, cluster

pytestmark = pytest.mark.timeout(120)


@contextlib.contextmanager
def two_servers(store: str, folder: Path) -> Iterator[tuple[Running, Running]]:
    with running(folder, store=store) as one, running(folder, store=store) as two:
        yield one, two


@pytest.fixture
def pair(store: str, tmp_path: Path) -> Iterator[tuple[penstock.Client, penstock.Client]]:
    """Clients of two servers."""
    with (
        two_servers(store, tmp_path) as (one, two),
        penstock.connect(url(one)) as here,
        penstock.connect(url(two)) as there,
    ):
        yield here, there


def url(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


class Poll(threading.Thread):
    """A long poll that is known to be waiting."""

    def __init__(self, server: Running, wait_ms: int) -> None:
        super().__init__()
        self._server = server
        self._wait_ms = wait_ms
        self.answer: Answer | None = None
        before = server.app.broker.polls
        self.start()
        eventually(lambda: server.app.broker.polls > before)

    def run(self) -> None:
        with self._server.client() as client:
            self.answer = client.post(f"/queues/q/poll?wait_ms={self._wait_ms}")

    @property
    def payloads(self) -> list[Any]:
        self.join()
        assert self.answer is not None
        assert self.answer.status == 200, self.answer
        return [message["payload"] for message in self.answer.json["messages"]]


def in_threads(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# One server's changes at another


def test_every_push_at_one_server_wakes_a_poll_at_another(store: str, tmp_path: Path) -> None:
    # The two pushes are so close together that the notifier thread usually reports them together.
    with two_servers(store, tmp_path) as (one, two), penstock.connect(url(one)) as client:
        queue = client.create_queue("q")
        for number in range(30):
            poll = Poll(two, 60_000)
            queue.push("another", delay=3600)
            queue.push(number)
            assert poll.payloads == [number]


def test_a_drop_at_one_server_is_seen_by_another_at_once(pair: tuple[penstock.Client, penstock.Client]) -> None:
    here, there = pair
    here.create_queue("q").push("old")
    there.queue("q").push("old too")
    here.queue("q").drop(force=True)
    with pytest.raises(UnknownQueue):
        there.queue("q").push("to nobody")
    with pytest.raises(UnknownQueue):
        there.queue("q").lease()
    here.create_queue("q", lease_ms=7_000)
    there.queue("q").push("new")
    assert there.queue("q").info().options.lease_ms == 7_000
    assert [message.payload for message in here.queue("q").lease(9)] == ["new"]


def test_options_changed_at_one_server_apply_at_another_at_once(pair: tuple[penstock.Client, penstock.Client]) -> None:
    here, there = pair
    here.create_queue("q", max_in_flight=1)
    there.queue("q").push_many(["a", "b", "c"])
    assert len(there.queue("q").lease(9)) == 1
    here.queue("q").configure(max_in_flight=2, max_size=3)
    assert len(there.queue("q").lease(9)) == 1
    assert len(there.queue("q").lease(9)) == 0
    here.queue("q").configure(max_in_flight=9)
    here.queue("q").pause()
    assert there.queue("q").lease(9) == []
    here.queue("q").resume()
    assert [message.payload for message in there.queue("q").lease(9)] == ["c"]


def test_a_resume_at_one_server_wakes_a_poll_at_another(store: str, tmp_path: Path) -> None:
    with two_servers(store, tmp_path) as (one, two), penstock.connect(url(one)) as client:
        queue = client.create_queue("q")
        queue.pause()
        queue.push("held back")
        poll = Poll(two, 60_000)
        queue.resume()
        assert poll.payloads == ["held back"]


# Sweeping


def test_leases_swept_by_two_servers_are_redelivered_once() -> None:
    world = PostgresUnderTest()
    try:
        other = world.open_another()
        world.make(lease_ms=1_000)
        sent = world.push(*(str(number) for number in range(400)))
        assert len(world.lease(limit=400)) == 400
        world.clock.advance(1_001)
        swept: list[int] = []

        def sweep(apply: Callable[[list[Any]], list[Any]]) -> None:
            for _ in range(10):
                (step,) = apply([Sweep(limit=50)])
                swept.append(step.lapsed)

        in_threads(lambda: sweep(world.store.apply), lambda: sweep(other.apply))
        assert sum(swept) == 400
        leased = world.lease(limit=500)
        assert [message.id for message in leased] == sent
        assert {message.attempts for message in leased} == {2}
        assert other.apply([Lease(queue="q", limit=500)])[0].messages == []
        assert world.info().totals.lapsed == 400
    finally:
        world.close_all()


# Servers that stop


def test_a_rolling_restart_causes_no_error_for_a_client_that_retries(store: str, tmp_path: Path) -> None:
    defaults: dict[str, Any] = {"data": str(tmp_path), "access_log": False, "canary_ms": 0, "store": store}
    servers = [Running(Settings(port=0, **defaults)) for _ in range(2)]
    urls = [url(server) for server in servers]
    with penstock.connect(urls[0]) as client:
        client.create_queue("q")
    restarted = threading.Event()
    sent, got = Counter[str](), Counter[str]()

    def produce(number: int) -> None:
        with penstock.connect(urls[number]) as client:
            step = 0
            while not restarted.is_set() or step < 20:
                sent[f"{number} {step}"] += 1
                client.queue("q").push(f"{number} {step}")
                step += 1

    def consume(number: int) -> None:
        with penstock.connect(urls[number]) as client:
            while not restarted.is_set() or client.queue("q").info().ready:
                for message in client.queue("q").lease(10, wait=0.2):
                    message.ack()
                    got[message.payload] += 1

    works = [threading.Thread(target=work, args=(number,)) for work in (produce, consume) for number in range(2)]
    try:
        for thread in works:
            thread.start()
        for number in range(2):
            port = servers[number].port
            servers[number].stop()
            servers[number] = Running(Settings(port=port, **defaults))
            so_far = sent.total()
            eventually(lambda so_far=so_far: sent.total() > so_far + 50)
    finally:
        restarted.set()
        for thread in works:
            thread.join()
        for server in servers:
            server.stop()
    assert got == sent


# Outages of the database


def test_during_an_outage_polls_end_empty_and_other_calls_get_retry_after(tmp_path: Path) -> None:
    own = Cluster()
    try:
        with running(tmp_path, store=own.url) as server, server.client() as client:
            client.queue("q")
            poll = Poll(server, 3_000)
            own.stop()
            refused = client.post("/queues/q/messages", {"payload": 1})
            assert (refused.status, refused.json["code"]) == (503, "store_unreachable")
            assert int(refused.headers["retry-after"]) >= 1
            assert "maybe_done" not in refused.json
            not_ready = client.get("/readyz")
            assert (not_ready.status, not_ready.json["ready"]) == (503, False)
            assert not_ready.json["checks"]["store"] != "ok"
            assert client.get("/healthz").status == 200
            assert poll.payloads == []
            assert client.post("/queues/q/poll?wait_ms=1000").status == 503
            own.start()
            eventually(lambda: client.get("/readyz").status == 200)
            assert client.post("/queues/q/messages", {"payload": 2}).status == 201
            assert client.get("/queues/q/stats").json["ready"] == 1
    finally:
        own.remove()


def test_a_poll_that_waits_through_an_outage_gets_later_messages(tmp_path: Path) -> None:
    own = Cluster()
    try:
        with two_servers(own.url, tmp_path) as (one, two), penstock.connect(url(two)) as client:
            queue = client.create_queue("q")
            polls = [Poll(one, 60_000), Poll(two, 60_000)]
            own.stop()
            own.start()
            queue.push_many(["late", "later"])
            assert sorted(polls[0].payloads + polls[1].payloads) == ["late", "later"]
    finally:
        own.remove()


def test_a_silent_database_connection_does_not_block_forever(store: str, tmp_path: Path) -> None:
    relay = Relay(cluster().folder)
    through = f"{relay.url}?schema={store.rpartition('=')[2]}&answer_ms=1000"
    try:
        with running(tmp_path, store=through, busy_ms=1_000) as server, server.client() as client:
            client.queue("q")
            poll = Poll(server, 3_000)
            relay.hold()
            refused = client.post("/queues/q/messages", {"payload": 1})
            assert (refused.status, refused.json["code"]) == (503, "store_unreachable")
            assert client.get("/readyz").status == 503
            assert poll.payloads == []
            relay.restore()
            eventually(lambda: client.get("/readyz").status == 200)
            assert client.post("/queues/q/messages", {"payload": 2}).status == 201
            payloads = [each["payload"] for each in client.post("/queues/q/poll?batch=9").json["messages"]]
            # The delayed push may have succeeded after all.
            assert payloads in ([2], [1, 2])
    finally:
        relay.close()


def test_a_push_with_a_lost_response_adds_one_message(store: str, tmp_path: Path) -> None:
    # On a connection's first push the SQL text is sent with the commit. Other commits of the server do not contain it.
    with Cutter(cluster().folder, cut_before=False, at=b".message (place") as cutter:
        schema = store.rpartition("=")[2]
        cut = f"postgresql://postgres@/postgres?host={cutter.folder}&schema={schema}"
        with running(tmp_path, store=cut, sweep_ms=600_000) as server, penstock.connect(url(server)) as client:
            queue = client.create_queue("q")
            pool = server.app.broker.store._pool  # type: ignore[attr-defined]
            with server.client() as plain:
                cutter.armed.set()
                answer = plain.post("/queues/q/messages", {"messages": [{"payload": "a"}]})
                assert cutter.cuts == 1
                assert answer.status == 201
            pool.drop_idle()
            cutter.armed.set()
            queue.push("b")
            assert cutter.cuts == 2
            assert [message.payload for message in queue.lease(9)] == ["a", "b"]
