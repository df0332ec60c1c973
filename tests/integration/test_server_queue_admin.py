"""The queue API, endpoint by endpoint: reads, dead letters, export and import, events."""

from __future__ import annotations

import json
import time

from tests.integration.serving import Client, Running
from tests.integration.test_server_disconnects import wait_until
from tests.integration.test_server_queues import poll, push, push_dead_letters
from tests.robustness.disconnects import request

# Reads


def test_stats_count_messages_by_state(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    push_dead_letters(client, queue, "boom")
    push(client, queue, 1, 2)
    push(client, queue, 3, delay_ms=60_000)
    [message] = poll(client, queue)
    client.post(f"{queue}/ack", {"id": message["id"], "token": message["token"]})
    poll(client, queue)
    stats = client.get(f"{queue}/stats").json
    counts = {key: stats[key] for key in ("ready", "scheduled", "leased", "dead", "dlq")}
    assert counts == {"ready": 0, "scheduled": 1, "leased": 1, "dead": 1, "dlq": 1}
    assert stats["rates"].keys() == {"1m", "5m", "15m"}
    assert stats["rates"]["1m"]["pushed"] > 0
    assert stats["error_rate"] == 0.5
    assert stats["totals"]["pushed"] == 4
    assert stats["oldest_age_ms"] is None
    assert isinstance(stats["latency"], dict)


def test_peek_returns_pages_and_never_leases(client: Client, queue: str) -> None:
    push(client, queue, *range(5))
    first = client.get(f"{queue}/peek?limit=3").json
    rest = client.get(f"{queue}/peek?limit=3&after={first['next']}").json
    assert [m["payload"] for m in first["messages"] + rest["messages"]] == list(range(5))
    assert rest["next"] is None
    assert client.get(f"{queue}/peek").json["messages"][0]["state"] == "ready"
    assert client.get(f"{queue}/stats").json["leased"] == 0
    assert client.get(f"{queue}/peek?after=nonsense").status == 422
    assert client.get(f"{queue}/peek?state=leased").json["messages"] == []


def test_a_message_can_be_read_and_deleted(client: Client, queue: str) -> None:
    [message_id] = push(client, queue, {"a": 1})
    assert client.get(f"{queue}/messages/{message_id}").json["payload"] == {"a": 1}
    assert client.delete(f"{queue}/messages/{message_id}").json == {"status": "ok"}
    assert client.get(f"{queue}/messages/{message_id}").status == 404
    assert client.delete(f"{queue}/messages/{message_id}").json["code"] == "unknown_message"
    assert client.get(f"{queue}/messages/abc").status == 422


def test_a_purge_has_a_dry_run_and_keeps_leases(client: Client, queue: str) -> None:
    push(client, queue, *range(5))
    poll(client, queue)
    assert client.post(f"{queue}/purge?dry_run=true").json == {"purged": 4, "dry_run": True}
    assert client.post(f"{queue}/purge").json == {"purged": 4, "dry_run": False}
    stats = client.get(f"{queue}/stats").json
    assert (stats["ready"], stats["leased"]) == (0, 1)


def test_a_pause_stops_leases_but_not_pushes(client: Client, queue: str) -> None:
    assert client.post(f"{queue}/pause").json["paused"] is True
    push(client, queue, 1)
    assert poll(client, queue) == []
    assert client.post(f"{queue}/resume").json["paused"] is False
    assert len(poll(client, queue)) == 1


def test_a_queue_can_be_compacted(client: Client, queue: str) -> None:
    assert client.post(f"{queue}/compact").json == {"status": "ok"}


# Dead letters


def test_dead_letters_are_browsed_with_error_and_history(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=2, backoff_ms=0)
    push(client, queue, "x")
    for error in ("first", "second"):
        [message] = poll(client, queue)
        item = {"id": message["id"], "token": message["token"]}
        client.post(f"{queue}/nack", {**item, "error": error, "delay_ms": 0})
    [dead] = client.get(f"{queue}/dlq").json["messages"]
    assert (dead["state"], dead["reason"], dead["attempts"]) == ("dead", "nacked", 2)
    assert {failure["error"] for failure in dead["errors"]} == {"first", "second"}
    assert dead["error"] == "second"
    assert client.get(f"/queues/{name}.dlq/peek").json["messages"][0]["id"] == dead["id"]
    assert [message["id"] for message in poll(client, f"/queues/{name}.dlq")] == [dead["id"]]


def test_dead_letters_are_redriven_by_a_filter(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    ids = push_dead_letters(client, queue, "timeout a", "timeout b", "refused")
    time.sleep(0.005)
    where = {"error_contains": "timeout"}
    dry = client.post(f"{queue}/dlq/requeue", {"where": where, "dry_run": True}).json
    assert dry == {"matched": 2, "moved": 0, "skipped": 2}
    assert client.post(f"{queue}/dlq/requeue", {"where": {"older_than_ms": 3_600_000}}).json["matched"] == 0
    assert client.post(f"{queue}/dlq/requeue", {"where": {"ids": ids[:1]}}).json["moved"] == 1
    moved = client.post(f"{queue}/dlq/requeue", {"where": where, "rate_per_s": 1_000}).json
    assert moved == {"matched": 1, "moved": 1, "skipped": 0}
    assert [m["attempts"] for m in poll(client, queue, "wait_ms=0&batch=9")] == [1, 1]
    assert client.post(f"{queue}/dlq/purge?dry_run=true").json == {"purged": 1, "dry_run": True}
    assert client.post(f"{queue}/dlq/purge").json == {"purged": 1, "dry_run": False}


def test_a_slow_redrive_ends_when_its_client_hangs_up(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    push_dead_letters(client, queue, *map(str, range(5)))
    time.sleep(0.005)
    with server.connect() as sock:
        sock.sendall(request(f"{queue}/dlq/requeue", b'{"rate_per_s": 0.1}'))
        wait_until(lambda: client.get(f"{queue}/stats").json["ready"] == 1)
    wait_until(lambda: b'requeue",status="499"} 1.0' in client.get("/metrics").body)
    assert client.get(f"{queue}/stats").json["dead"] == 4


def test_a_requeue_without_a_body_moves_every_dead_letter(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    push_dead_letters(client, queue, "a", "b")
    time.sleep(0.005)
    assert client.post(f"{queue}/dlq/requeue").json == {"matched": 2, "moved": 2, "skipped": 0}


def test_a_dry_run_on_the_dead_letter_name_counts_dead_letters(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    push_dead_letters(client, queue, "a")
    push(client, queue, 1, 2, 3)
    assert client.post(f"/queues/{name}.dlq/purge?dry_run=true").json["purged"] == 1


# Export and import


def test_an_export_can_be_imported(client: Client, name: str) -> None:
    queue, other = client.queue(name, max_attempts=1), client.queue(f"{name}-copy")
    push_dead_letters(client, queue, "dead")
    push(client, queue, *range(600))
    push(client, queue, "late", delay_ms=3_600_000, headers={"k": "v"}, idempotency_key="key")
    client.post(f"{queue}/messages", {"payload": "AP8=", "encoding": "base64"})
    exported = client.get(f"{queue}/export")
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert len(exported.body.splitlines()) == 603
    done = client.post(f"{other}/import", exported.body, content_type="application/x-ndjson")
    assert (done.status, done.json) == (200, {"imported": 603, "duplicates": 0, "skipped": 0})
    again = client.post(f"{other}/import", exported.body, content_type="application/x-ndjson")
    assert again.json == {"imported": 0, "duplicates": 603, "skipped": 0}
    stats = client.get(f"{other}/stats").json
    assert (stats["ready"], stats["scheduled"]) == (602, 1)
    [late] = client.get(f"{other}/peek?state=scheduled").json["messages"]
    assert (late["payload"], late["headers"], late["idempotency_key"]) == ("late", {"k": "v"}, "key")


def test_an_import_into_its_own_queue_adds_only_missing_messages(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    push_dead_letters(client, queue, "dead")
    push(client, queue, "held", "done", "ready")
    push(client, queue, "late", delay_ms=3_600_000)
    held, done = poll(client, queue, "wait_ms=0&batch=2")
    exported = client.get(f"{queue}/export").body
    client.post(f"{queue}/ack", {"id": done["id"], "token": done["token"]})
    answer = client.post(f"{queue}/import", exported, content_type="application/x-ndjson")
    assert answer.json == {"imported": 1, "duplicates": 4, "skipped": 0}
    assert [message["payload"] for message in poll(client, queue, "wait_ms=0&batch=9")] == ["ready", "done"]
    assert client.post(f"{queue}/ack", {"id": held["id"], "token": held["token"]}).status == 200


def test_a_ready_message_is_imported_as_ready_despite_the_queues_delay(client: Client, name: str) -> None:
    queue, slow = client.queue(name), client.queue(f"{name}-slow", delay_ms=3_600_000)
    push(client, queue, "now")
    exported = client.get(f"{queue}/export").body
    client.post(f"{slow}/import", exported, content_type="application/x-ndjson")
    client.post(f"{slow}/import", b'{"payload": "whenever"}', content_type="application/x-ndjson")
    assert [message["payload"] for message in poll(client, slow, "wait_ms=0&batch=9")] == ["now"]


def test_an_invalid_import_line_is_named(client: Client, queue: str) -> None:
    body = b'{"payload": 1}\n{"payload": 5, "content": "text"}\n'
    answer = client.post(f"{queue}/import", body, content_type="application/x-ndjson")
    assert (answer.status, answer.json["field"]) == (422, "payload")


# Events


def test_events_are_published_as_server_sent_events(server: Running, client: Client, queue: str) -> None:
    with server.client() as listener:
        listener.connection.request("GET", f"{queue}/events")
        stream = listener.connection.getresponse()
        assert stream.getheader("content-type") == "text/event-stream"
        assert stream.readline().startswith(b":")
        [message_id] = push(client, queue, 1)
        [message] = poll(client, queue)
        client.post(f"{queue}/ack", {"id": message_id, "token": message["token"]})
        client.post(f"{queue}/pause")
        seen: list[str] = []
        while "paused" not in seen:
            line = stream.readline().decode()
            if line.startswith("event: "):
                seen.append(line.split()[1])
                assert json.loads(stream.readline()[6:])["queue"] == queue.rpartition("/")[2]
    # Earlier events may be included.
    assert [each for each in seen if each != "created"] == ["pushed", "leased", "acked", "paused"]
