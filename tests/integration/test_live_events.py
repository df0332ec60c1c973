"""Events on one server of a fleet are published live by every other server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from penstock.server import event_stream
from tests.conformance.support import eventually
from tests.integration.serving import PATIENCE, Client, Running, running

pytestmark = pytest.mark.timeout(120)
API = "/api/v1"


@pytest.fixture
def pair(store: str, tmp_path: Path) -> Iterator[tuple[Running, Running]]:
    with running(tmp_path, store=store, metrics_ms=100) as one, running(tmp_path, store=store, metrics_ms=100) as two:
        yield one, two


@contextmanager
def watching(server: Running, query: str = "") -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{server.port}/ws/dashboard{query}", max_queue=None) as watcher:
        yield watcher


def next_events(watcher: ClientConnection, count: int) -> list[dict[str, Any]]:
    """Return the next events of messages and created queues, in order."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        message = json.loads(watcher.recv(timeout=PATIENCE))
        if message["event"].startswith(("message.", "queue.created")):
            found.append(message)
    return found


class Subscriber:
    """Subscribes to the events of a queue."""

    def __init__(self, server: Running, queue: str, seen: str | None = None) -> None:
        self._client = server.client()
        headers = {} if seen is None else {"Last-Event-ID": seen}
        self._client.connection.request("GET", f"{queue}/events", headers=headers)
        self._stream = self._client.connection.getresponse()
        # The id of the last event received.
        self.seen = seen
        assert self._stream.readline().startswith(b":")

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next event, skipping the creation of the queue."""
        while not (line := self._stream.readline()).startswith(b"event: ") or b"created" in line:
            assert line, "the stream has ended"
            if line.startswith(b"id: "):
                self.seen = line[4:].strip().decode()
        return line[7:].strip().decode(), json.loads(self._stream.readline()[6:])

    def close(self) -> None:
        self._client.close()


@contextmanager
def subscribed(server: Running, queue: str, seen: str | None = None) -> Iterator[Subscriber]:
    listener = Subscriber(server, queue, seen)
    try:
        yield listener
    finally:
        listener.close()


def push(client: Client, *payloads: Any) -> None:
    items = [{"ns": "ns", "task": "t", "queue": "q", "payload": payload} for payload in payloads]
    assert client.post(f"{API}/push", {"items": items}).status == 201


def test_a_dashboard_at_one_server_gets_events_of_another(pair: tuple[Running, Running]) -> None:
    one, two = pair
    with one.client() as here, two.client() as there, watching(two) as watcher:
        push(here, 1)
        (message,) = there.get(f"{API}/pop/ns/ns?worker=ada").json["messages"]
        here.post(f"{API}/ack", {"transactionId": message["transactionId"], "status": "completed"})
        events = next_events(watcher, 4)
        assert [event["event"] for event in events] == [
            "queue.created",
            "message.pushed",
            "message.processing",
            "message.completed",
        ]
        assert {event["data"].get("transactionId") for event in events[1:]} == {message["transactionId"]}
        push(here, 2)
        while json.loads(watcher.recv(timeout=PATIENCE))["event"] != "queue.depth":
            pass


def test_a_dashboard_resumes_at_another_server(pair: tuple[Running, Running]) -> None:
    one, two = pair
    with one.client() as here:
        with watching(one) as watcher:
            push(here, 1)
            seen = next_events(watcher, 2)[-1]
        push(here, 2)
        with watching(two, f"?since={seen['offset']}") as watcher:
            (event,) = next_events(watcher, 1)
        assert event["event"] == "message.pushed"
        assert event["data"]["id"] != seen["data"]["id"]


def test_a_subscriber_at_one_server_gets_events_of_another(pair: tuple[Running, Running]) -> None:
    one, two = pair
    with one.client() as here, two.client() as there:
        queue = here.queue("q")
        with subscribed(two, queue) as far, subscribed(one, queue) as near:
            here.post(f"{queue}/messages", {"messages": [{"payload": 1}, {"payload": 2}]})
            (message, _) = there.post(f"{queue}/poll?batch=2").json["messages"]
            here.post(f"{queue}/ack", {"id": message["id"], "token": message["token"]})
            there.post(f"{queue}/pause")
            for listener in (far, near):
                assert [listener.next() for _ in range(4)] == [
                    ("pushed", {"queue": "q", "count": 2}),
                    ("leased", {"queue": "q", "count": 2}),
                    ("acked", {"queue": "q", "count": 1}),
                    ("paused", {"queue": "q"}),
                ]


def test_a_reconnecting_subscriber_gets_missed_events_from_any_server(pair: tuple[Running, Running]) -> None:
    one, two = pair
    with one.client() as here:
        queue = here.queue("q")
        with subscribed(one, queue) as listener:
            here.post(f"{queue}/messages", {"payload": 1})
            assert listener.next()[0] == "pushed"
            seen = listener.seen
        assert seen is not None
        here.post(f"{queue}/poll")
        here.queue("bystander")
        here.post(f"{queue}/pause")
        with subscribed(two, queue, seen) as listener:
            here.post(f"{queue}/resume")
            assert [listener.next()[0] for _ in range(3)] == ["leased", "paused", "resumed"]
            assert int(listener.seen or 0) > int(seen)


def test_an_invalid_last_event_id_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        answer = client.get(f"{client.queue('q')}/events", Last_Event_ID="yesterday")
        assert (answer.status, answer.json["field"]) == (422, "Last-Event-ID")


def test_the_journal_is_not_read_without_subscribers(pair: tuple[Running, Running]) -> None:
    one, _ = pair
    assert one.app.broadcaster is not None
    with one.client() as here:
        queue = here.queue("q")
        with subscribed(one, queue):
            assert one.app.broadcaster._following is not None
        eventually(lambda: one.app.broadcaster._following is None)  # type: ignore[union-attr]
        with subscribed(one, queue) as again:
            here.post(f"{queue}/messages", {"payload": 1})
            assert again.next() == ("pushed", {"queue": "q", "count": 1})


def test_a_queue_without_a_journal_has_events_of_this_server(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        queue = client.queue("q", journal="off")
        with subscribed(server, queue) as listener:
            client.post(f"{queue}/messages", {"payload": 1})
            assert listener.next() == ("pushed", {"queue": "q", "count": 1})


def test_a_slow_subscriber_gets_the_number_of_missed_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "BEHIND_RECORDS_MAX", 10)
    monkeypatch.setattr(event_stream, "PAGE_RECORDS", 1)
    with running(tmp_path) as server, server.client() as client:
        queue = client.queue("q")
        assert server.app.broadcaster is not None
        reader, held = server.app.broadcaster._reader, threading.Event()
        read = reader.read

        def read_when_released(*args: Any, **how: Any) -> Any:
            held.wait(PATIENCE)
            return read(*args, **how)

        monkeypatch.setattr(reader, "read", read_when_released)
        with subscribed(server, queue) as listener:
            before = reader.next_offset()
            for verb in ("pause", "resume") * 10:
                client.post(f"{queue}/{verb}")
            eventually(lambda: reader.next_offset() >= before + 20)
            held.set()
            found = [listener.next()]
            while found[-1][0] != "missed":
                found.append(listener.next())
            assert found[-1][1]["records"] > 10
