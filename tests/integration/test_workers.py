"""The list of workers, as the servers of a fleet, clients and the command line show it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect as connect_socket

import penstock
from penstock import InvalidInput, aio
from penstock.broker.workers import NAMES_MAX, QUEUES_MAX, WorkerRegistry
from penstock.config import load_settings
from tests.conformance.support import eventually
from tests.integration.command_line import penstock as command
from tests.integration.conftest import serving_from
from tests.integration.serving import PATIENCE, Client, Running, running

pytestmark = pytest.mark.timeout(120)
QUICK: dict[str, Any] = {"worker_heartbeat_ms": 100, "worker_stale_ms": 600_000}


def workers(client: Client) -> dict[str, dict[str, Any]]:
    answer = client.get("/workers")
    assert answer.status == 200, answer
    return {each["name"]: each for each in answer.json["workers"]}


def events(watcher: Any) -> Iterator[tuple[str, str]]:
    """Collect the worker events that a dashboard receives."""
    while True:
        message = json.loads(watcher.recv(timeout=PATIENCE))
        if message["event"].startswith("worker."):
            yield message["event"], message["data"]["workerId"]


@contextmanager
def watching(server: Running) -> Iterator[Iterator[tuple[str, str]]]:
    with connect_socket(f"ws://127.0.0.1:{server.port}/ws/dashboard?since=0", max_queue=None) as watcher:
        yield events(watcher)


def test_a_digest_names_a_new_worker(tmp_path: Path) -> None:
    with running(tmp_path, **QUICK) as server, server.client() as client:
        path = client.queue("emails")
        with connect_socket(f"ws://127.0.0.1:{server.port}/ws/dashboard?digest=true") as watcher:
            client.post(f"{path}/poll?worker=ada&wait_ms=0")
            came: list[str] = []
            while "ada" not in came:
                message = json.loads(watcher.recv(timeout=PATIENCE))
                latest = message["data"].get("latest", [])
                came += [each["queue"] for each in latest if each["kind"] == "worker connected"]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_server_and_its_consumers_are_listed(store: str, tmp_path: Path) -> None:
    with serving_from(store, tmp_path, worker_id="one", **QUICK) as server, server.client() as client:
        path = client.queue("emails")
        client.post(f"{path}/messages", {"messages": [{"payload": 1}, {"payload": 2}]})
        assert len(client.post(f"{path}/poll?batch=2&worker=ada").json["messages"]) == 2
        eventually(lambda: "ada" in workers(client))
        found = workers(client)
        one, ada = found["one"], found["ada"]
        assert (one["kind"], one["host"], one["pid"]) == ("server", socket.gethostname(), os.getpid())
        assert one["version"] == penstock.__version__
        assert (ada["kind"], ada["server"], ada["leases"]) == ("consumer", "one", 2)
        assert ada["queues"] == [{"queue": "emails", "leases": 2}]
        pages = [client.get(f"/workers?limit=1&after={after}").json for after in ("", "consumer:ada")]
        assert [page["workers"][0]["name"] for page in pages] == ["ada", "one"]


def test_every_server_lists_workers_that_join_and_leave(store: str, tmp_path: Path) -> None:
    with running(tmp_path, store=store, worker_id="one", **QUICK) as one, one.client() as client:
        client.queue("ns/task/queue")
        with watching(one) as present:
            with running(tmp_path, store=store, worker_id="two", **QUICK) as two, two.client() as there:
                assert there.get("/api/v1/pop/ns/ns?worker=ada").status == 204
                assert [next(present) for _ in range(3)] == [
                    ("worker.connected", "one"),
                    ("worker.connected", "two"),
                    ("worker.connected", "ada"),
                ]
                assert set(workers(client)) == set(workers(there)) == {"one", "two", "ada"}
            assert next(present) == ("worker.disconnected", "two")
        assert "two" not in workers(client)
        shown = client.get("/journal/events?kind=worker").json["events"]
        assert [(e["details"]["what"], e["details"]["worker"]) for e in shown][-1] == ("disconnected", "two")
        assert {(event["queue"], event["details"]["role"]) for event in shown} == {("", "server"), ("", "consumer")}


def test_a_waiting_poll_keeps_its_consumer_listed(tmp_path: Path) -> None:
    with running(tmp_path, worker_heartbeat_ms=100, worker_stale_ms=200) as server, server.client() as client:
        path = client.queue("q")

        def wait() -> None:
            with server.client() as another:
                another.post(f"{path}/poll?wait_ms=60000&worker=ada")

        poll = threading.Thread(target=wait)
        poll.start()
        eventually(lambda: "ada" in workers(client))
        since = workers(client)["ada"]["seen_at"]
        eventually(lambda: workers(client)["ada"]["seen_at"] > since + 400)
        client.post(f"{path}/messages", {"payload": 1})
        poll.join()


@pytest.mark.parametrize("where", ["file", "server"])
def test_consume_and_worker_are_listed_by_name(where: str, tmp_path: Path) -> None:
    with running(tmp_path, worker_id="one", **QUICK) as server, server.client() as client:
        client.queue("q")
        url = f"http://127.0.0.1:{server.port}" if where == "server" else f"sqlite:///{server.path}"
        with penstock.connect(url, worker="ada") as ours:
            queue = ours.queue("q")
            queue.push_many([1, 2])
            for message in queue.consume(idle=30):
                eventually(lambda: workers(client).get("ada", {}).get("leases") == 1)
                with message:
                    break
            ada = workers(client)["ada"]
            assert ada["server"] == ("one" if where == "server" else None)
            assert ada["pid"] == (None if where == "server" else os.getpid())
        if where == "file":
            assert "ada" not in workers(client)
        done = threading.Event()
        with penstock.connect(url) as ours:

            @ours.queue("q").worker()
            def work(message: Any) -> None:
                done.set()

            thread = threading.Thread(target=work.run)
            thread.start()
            assert done.wait(PATIENCE)
            name = f"worker-{socket.gethostname()}-{os.getpid()}"
            eventually(lambda: name in workers(client))
            work.stop()
            thread.join()


def test_an_async_consumer_of_a_file_is_listed_while_the_file_is_open(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"

    async def work() -> None:
        async with aio.connect(f"sqlite:///{path}", worker="ada") as client:
            queue = await client.create_queue("q")
            await queue.push(1)
            async for message in queue.consume(idle=0):
                async with message:
                    found = await asyncio.to_thread(command, "workers", "--db", str(path), "--json")
                    assert [(each["name"], each["leases"]) for each in found.json["workers"]] == [("ada", 1)]

    asyncio.run(work())
    assert command("workers", "--db", str(path), "--json").json == {"workers": []}


def test_the_command_shows_workers_as_a_table(tmp_path: Path) -> None:
    with running(tmp_path, worker_id="one", **QUICK) as server, server.client() as client:
        path = client.queue("emails")
        client.post(f"{path}/messages", {"payload": 1})
        client.post(f"{path}/poll?worker=ada")
        eventually(lambda: "ada" in workers(client))
        shown = command("workers", "--url", f"http://127.0.0.1:{server.port}")
        heading, ada, one = shown.out.splitlines()
        assert heading.split() == ["KIND", "NAME", "WHERE", "LEASES", "QUEUES", "SINCE", "LAST", "SEEN"]
        assert ada.split()[:5] == ["consumer", "ada", "one", "1", "emails=1"]
        assert one.split()[:3] == ["server", "one", f"{socket.gethostname()}:{os.getpid()}"]


def test_heartbeat_variables_of_the_tree_are_supported() -> None:
    settings = load_settings({}, {"WORKER_HEARTBEAT_INTERVAL": "5000", "STALE_WORKER_TIMEOUT": "11000"})
    assert (settings.worker_heartbeat_ms, settings.worker_stale_ms) == (5_000, 11_000)
    with pytest.raises(InvalidInput, match="two heartbeats") as refused:
        load_settings({}, {"STALE_WORKER_TIMEOUT": "15000"})
    assert refused.value.field == "worker_stale_ms"


def test_the_number_of_registered_names_is_limited() -> None:
    worker_registry = WorkerRegistry()
    for number in range(NAMES_MAX + 5):
        worker_registry.unregister(worker_registry.register(f"c{number}", "q"))
    assert worker_registry.register("x" * 256, "q") is None
    for number in range(QUEUES_MAX + 5):
        worker_registry.unregister(worker_registry.register("c1", f"q{number}"))
    beat = worker_registry.beat()
    assert len(beat.present) == NAMES_MAX
    assert list(beat.present[1].queues) == [f"q{number}" for number in range(5, QUEUES_MAX + 5)]


def test_a_worker_that_left_is_removed_from_the_list() -> None:
    worker_registry = WorkerRegistry()
    registration = worker_registry.register("waits", "q")
    worker_registry.unregister(worker_registry.register("leaves", "q"))
    present = [[each.name for each in worker_registry.beat().present] for _ in range(5)]
    assert present == [["waits", "leaves"], *[["waits"]] * 4]
    worker_registry.unregister(registration)
    assert [each.name for each in worker_registry.beat().present] == ["waits"]
    for _ in range(4):
        assert worker_registry.beat().present == []
    assert worker_registry.leave().gone == []


def test_only_one_caller_sends_the_heartbeat() -> None:
    worker_registry = WorkerRegistry()
    assert not worker_registry.due()
    worker_registry.register("ada", "q")
    worker_registry.heartbeat_ms = 3_600_000
    worker_registry.beat()
    assert [worker_registry.due() for _ in range(3)] == [False, False, False]
    worker_registry.heartbeat_ms = 0
    assert worker_registry.due()
