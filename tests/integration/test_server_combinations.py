"""Combinations of features: dead-letter names, waiting takes, exports, keys, journals and transaction ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import serving_from
from tests.integration.serving import Client, Running, running
from tests.integration.test_server_wakeups import SOON, WaitingRequest, bury

NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("server"), sweep_ms=20) as server:
        yield server


def test_a_queue_cannot_be_dropped_by_its_dead_letter_name(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    assert client.delete(f"{queue}.dlq").status == 422
    bury(client, queue)
    client.post(f"{queue}/messages", {"payload": "alive"})
    assert client.delete(f"{queue}.dlq?force=true").status == 422
    shown = client.get(queue).json
    assert (shown["ready"], shown["dead"]) == (1, 1)


def test_a_queue_cannot_be_paused_taken_from_or_given_keys_by_its_dead_letter_name(client: Client, name: str) -> None:
    queue = client.queue(name)
    client.post(f"{queue}/messages", {"payload": "alive"})
    assert client.post(f"{queue}.dlq/pause").status == 404
    assert client.post(f"{queue}.dlq/keys", {"name": "k", "rights": ["push"]}).status == 404
    client.get(f"/v1/messages?topic={name}.dlq")
    shown = client.get(queue).json
    assert (shown["ready"], shown["paused"]) == (1, False)


def test_a_message_taken_by_a_waiting_take_is_never_redelivered(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, lease_ms=1)
    for number in range(5):
        waiting = WaitingRequest(server, "GET", f"/v1/messages?topic={name}&wait=60")
        client.post(f"{queue}/messages", {"payload": number})
        assert len(waiting.woken().json) == 1
    shown = client.get(queue).json
    assert (shown["ready"], shown["leased"], shown["dead"]) == (0, 0, 0)


def test_json_with_line_breaks_survives_export_and_import(client: Client, name: str) -> None:
    queue, other = client.queue(name), client.queue(f"{name}-2")
    client.ask("POST", f"{queue}/messages", b'{"payload": {\r\n  "a": "b\\n"\n}}')
    exported = client.get(f"{queue}/export").body
    assert exported.count(b"\n") == 1
    assert client.ask("POST", f"{other}/import", exported, content_type=NDJSON).json["imported"] == 1
    [message] = client.post(f"{other}/poll").json["messages"]
    assert message["payload"] == {"a": "b\n"}


def test_lines_sent_again_with_their_key_are_pushed_once(client: Client, name: str) -> None:
    queue = client.queue(name)
    lines = b'{"payload":1}\n{"payload":2}\n'
    first, again = (
        client.ask("POST", f"{queue}/messages", lines, content_type=NDJSON, Idempotency_Key="K").json for _ in range(2)
    )
    assert first["message_ids"] == again["message_ids"]
    assert client.get(queue).json["ready"] == 2


def test_another_api_cannot_claim_a_transaction_id(client: Client, name: str) -> None:
    item = {"ns": name, "task": "t", "queue": "v", "payload": 1, "transactionId": f"{name}-T"}
    client.post("/api/v1/push", {"items": [item]})
    client.post("/api/v1/configure", {"ns": name, "task": "t", "queue": "w"})
    exported = client.get(f"/queues/{name}%2Ft%2Fv/export").body
    client.ask("POST", f"/queues/{name}%2Ft%2Fw/import", exported, content_type=NDJSON)
    client.post(f"/queues/{name}%2Ft%2Fw/messages", {"payload": 2, "headers": {"transaction-id": f"{name}-T"}})
    for queue in ("v", "w", "w"):
        assert client.get(f"/api/v1/pop/ns/{name}/task/t/queue/{queue}").status == 200
    assert client.post("/api/v1/ack", {"transactionId": f"{name}-T", "status": "completed"}).status == 200
    assert [client.get(f"/queues/{name}%2Ft%2F{queue}").json["leased"] for queue in ("v", "w")] == [0, 2]


def test_a_recreated_queue_has_no_latencies_of_the_dropped_one(client: Client, name: str) -> None:
    queue = client.queue(name)
    client.post(f"{queue}/messages", {"payload": 1})
    [message] = client.post(f"{queue}/poll").json["messages"]
    client.post(f"{queue}/ack", {"id": message["id"], "token": message["token"]})
    client.delete(f"{queue}?force=true")
    fresh = client.queue(f"{name}-2")
    time.sleep(0.2)  # Wait for some sweeps, which write the gathered latencies.
    assert client.get(f"{fresh}/stats").json["latency"]["wait_ms"]["p50"] is None


def test_the_journal_has_no_events_from_while_it_was_off(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        queue = client.queue("j", journal="off")
        for number in range(6):
            client.post(f"{queue}/messages", {"payload": f"secret{number}"})
        client.ask("PATCH", queue, {"journal": "full"})
    with running(tmp_path) as server, server.client() as client:
        [message] = client.post("/queues/j/poll").json["messages"]
        client.post("/queues/j/ack", {"id": message["id"], "token": message["token"]})
        deadline = time.monotonic() + SOON
        while b'"acked"' not in (events := client.get("/journal/events?from=0&limit=1000").body):
            assert time.monotonic() < deadline
        assert b"secret" not in events
