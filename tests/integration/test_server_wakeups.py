"""Everything that makes a message ready wakes a waiting poll, also in combination with other features."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import LiteQueue
from tests.integration.conftest import serving_from
from tests.integration.serving import Answer, Client, Running

SOON = 30.0


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


class WaitingRequest:
    """A request that waits for a minute unless it is woken."""

    def __init__(self, server: Running, method: str, path: str) -> None:
        def ask() -> None:
            with server.client() as client:
                self.answer = client.ask(method, path)

        broker = server.app.broker
        polls = broker.polls
        self._thread = threading.Thread(target=ask, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + SOON
        while broker.polls == polls:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def woken(self) -> Answer:
        self._thread.join(SOON)
        assert not self._thread.is_alive(), "the request was not woken"
        return self.answer


def bury(client: Client, queue: str) -> None:
    client.post(f"{queue}/messages", {"payload": "dead"})
    [message] = client.post(f"{queue}/poll").json["messages"]
    assert client.post(f"{queue}/nack", {"id": message["id"], "token": message["token"]}).status == 200


def test_a_resume_wakes_polls_for_messages_due_later(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name)
    client.post(f"{queue}/pause")
    client.post(f"{queue}/messages", {"payload": 1, "delay_ms": 300})
    waiting = WaitingRequest(server, "POST", f"{queue}/poll?wait_ms=60000")
    client.post(f"{queue}/resume")
    assert len(waiting.woken().json["messages"]) == 1


def test_a_lease_that_expires_into_a_dead_letter_wakes_a_poll(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    waiting = WaitingRequest(server, "POST", f"{queue}.dlq/poll?wait_ms=60000")
    client.post(f"{queue}/messages", {"payload": 1})
    client.post(f"{queue}/poll?visibility_ms=100")
    assert len(waiting.woken().json["messages"]) == 1


def test_settling_a_dead_letter_frees_a_slot_in_flight(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1, max_in_flight=1)
    bury(client, queue)
    [dead] = client.post(f"{queue}.dlq/poll").json["messages"]
    client.post(f"{queue}/messages", {"payload": 2})
    waiting = WaitingRequest(server, "POST", f"{queue}/poll?wait_ms=60000")
    client.post(f"{queue}.dlq/ack", {"id": dead["id"], "token": dead["token"]})
    assert len(waiting.woken().json["messages"]) == 1


def test_a_redrive_by_the_dead_letter_name_wakes_polls(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    bury(client, queue)
    waiting = WaitingRequest(server, "POST", f"{queue}/poll?wait_ms=60000")
    client.post(f"{queue}.dlq/dlq/requeue")
    assert len(waiting.woken().json["messages"]) == 1


def test_a_dropped_queue_ends_polls_of_its_dead_letters(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name)
    waiting = WaitingRequest(server, "POST", f"{queue}.dlq/poll?wait_ms=60000")
    client.ask("DELETE", queue)
    assert waiting.woken().status == 404


def test_a_namespace_poll_still_waits_when_a_poll_of_its_queue_has_left(
    server: Running, client: Client, name: str
) -> None:
    client.post("/api/v1/configure", {"ns": name, "task": "t", "queue": "q"})
    path = f"/queues/{name}%2Ft%2Fq"
    everywhere = WaitingRequest(server, "GET", f"/api/v1/pop/ns/{name}?wait=true&timeout=60000")
    here = WaitingRequest(server, "POST", f"{path}/poll?wait_ms=200")
    client.post(f"{path}/messages", {"payload": 1, "delay_ms": 3_000})
    assert here.woken().json["messages"] == []
    assert everywhere.woken().status == 200


def test_an_embedded_queue_waits_for_dead_letters(tmp_path: Path) -> None:
    with LiteQueue(tmp_path / "q.db", max_retries=0) as queue:
        queue.put(b"x")
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(queue.pop("default.dlq", wait=60)), daemon=True)
        thread.start()
        queue.pop(timeout=0.1)
        thread.join(SOON)
        assert len(found) == 1
