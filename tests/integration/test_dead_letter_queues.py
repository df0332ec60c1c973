"""Dead letters are addressed as a queue: as `<queue>.dlq`, or as the queue named in the `dlq` option."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from tests.integration.conftest import Fresh, serving_from
from tests.integration.serving import Client, Running
from tests.integration.test_server_queues import poll, push, push_dead_letters


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


def test_dead_letters_are_addressed_like_a_queue(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    (dead,) = push_dead_letters(client, queue, "broken")
    push(client, queue, "ready")
    letters = f"{queue}.dlq"
    shown = client.get(letters)
    assert shown.status == 200, shown.json
    assert (shown.json["name"], shown.json["ready"], shown.json["dlq"]) == (f"{name}.dlq", 1, None)
    stats = client.get(f"{letters}/stats").json
    assert (stats["queue"], stats["ready"], stats["totals"]["pushed"]) == (f"{name}.dlq", 1, 1)
    exported = client.get(f"{letters}/export")
    assert (exported.status, exported.body.count(b"\n"), b'"broken"' in exported.body) == (200, 1, True)
    assert [each["id"] for each in client.get(f"{letters}/peek").json["messages"]] == [dead]
    assert client.get(f"{letters}/messages/{dead}").json["state"] == "dead"
    assert client.post("/queues", {"name": f"{name}.dlq"}).status == 200
    assert [each["id"] for each in poll(client, letters)] == [dead]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "", {"lease_ms": 5}),
        ("DELETE", "?force=true", None),
        ("POST", "/messages", {"payload": 1}),
    ],
)
def test_unsupported_operations_on_dead_letters_are_refused_with_a_hint(
    client: Client, name: str, method: str, path: str, body: Any
) -> None:
    queue = client.queue(name, max_attempts=1)
    push_dead_letters(client, queue, "broken")
    refused = client.ask(method, f"{queue}.dlq{path}", body)
    assert (refused.status, bool(refused.json["hint"])) == (422, True)
    assert name in refused.json["error"]
    assert client.get(f"{queue}.dlq").json["ready"] == 1


def test_a_missing_queue_has_no_dead_letters(client: Client, name: str) -> None:
    assert client.get(f"/queues/{name}.dlq").status == 404
    assert client.post("/queues", {"name": f"{name}.dlq"}).status == 422


def test_dead_letters_go_to_the_named_queue_and_record_their_origin(client: Client, name: str) -> None:
    failed = client.queue(f"{name}-failed")
    queue = client.queue(name, max_attempts=1, dlq=f"{name}-failed")
    assert client.get(queue).json["dlq"] == f"{name}-failed"
    (dead,) = push_dead_letters(client, queue, "broken")
    uuid = client.get(f"{queue}/messages/{dead}")
    assert uuid.status == 404
    (letter,) = poll(client, failed, "wait_ms=5000")
    assert (letter["payload"], letter["attempts"]) == ("broken", 1)
    origin = {key: value for key, value in letter["headers"].items() if key != "penstock-origin-id"}
    assert origin == {
        "penstock-origin": name,
        "penstock-origin-attempts": "1",
        "penstock-origin-error": "broken",
        "penstock-origin-reason": "nacked",
    }
    assert (client.get(queue).json["dead"], client.get(queue).json["totals"]["dead"]) == (0, 1)


def test_a_redrive_moves_only_messages_that_died_in_this_queue(client: Client, name: str) -> None:
    failed = client.queue(f"{name}-failed", max_attempts=1)
    one, two = (client.queue(f"{name}-{number}", max_attempts=1, dlq=f"{name}-failed") for number in (1, 2))
    push_dead_letters(client, one, "timeout", "broken")
    push_dead_letters(client, two, "timeout")
    push(client, failed, "its own")
    body = {"where": {"error_contains": "time"}}
    assert client.post(f"{one}/dlq/requeue", {**body, "dry_run": True}).json["matched"] == 1
    assert client.post(f"{one}/dlq/requeue", body).json == {"matched": 1, "moved": 1, "skipped": 0}
    (message,) = poll(client, one)
    assert (message["payload"], message.get("headers")) == ("timeout", None)
    assert client.post(f"{one}/dlq/requeue").json["moved"] == 1
    assert client.post(f"{two}/dlq/requeue").json["moved"] == 1
    assert {each["payload"] for each in poll(client, failed, "wait_ms=0&batch=9")} == {"its own"}


def test_a_dead_letter_that_dies_again_in_the_named_queue_can_be_redriven(client: Client, name: str) -> None:
    failed = client.queue(f"{name}-failed", max_attempts=1)
    queue = client.queue(name, max_attempts=1, dlq=f"{name}-failed")
    push_dead_letters(client, queue, "broken")
    (letter,) = poll(client, failed, "wait_ms=5000")
    client.post(f"{failed}/nack", {"id": letter["id"], "token": letter["token"], "error": "again"})
    assert client.get(failed).json["dead"] == 1
    assert client.post(f"{queue}/dlq/requeue").json["moved"] == 1
    assert [each["payload"] for each in poll(client, queue)] == ["broken"]


def test_an_expired_lease_dead_letters_into_the_named_queue(server: Running, client: Client, name: str) -> None:
    failed = client.queue(f"{name}-failed")
    queue = client.queue(name, max_attempts=1, dlq=f"{name}-failed")
    push(client, queue, "slow")
    poll(client, queue, "wait_ms=0&visibility_ms=1")
    assert [each["payload"] for each in poll(client, failed, "wait_ms=30000")] == ["slow"]


def test_dead_letters_stay_while_the_named_queue_is_missing(client: Client, name: str) -> None:
    failed = client.queue(f"{name}-failed")
    queue = client.queue(name, max_attempts=1, dlq=f"{name}-failed")
    assert client.delete(failed).status == 200
    push_dead_letters(client, queue, "broken")
    assert client.get(f"{queue}.dlq").json["ready"] == 1
    client.queue(f"{name}-failed")
    assert [each["payload"] for each in poll(client, failed, "wait_ms=30000")] == ["broken"]


def test_a_missing_or_circular_dlq_is_refused(client: Client, name: str) -> None:
    last, middle = client.queue(f"{name}-last"), client.queue(f"{name}-middle", dlq=f"{name}-last")
    queue = client.queue(name)
    for dlq in (name, f"{name}-missing", f"{name}-middle", f"{name}-last.dlq", "no name", ""):
        refused = client.ask("PATCH", queue, {"dlq": dlq})
        assert (refused.status, refused.json["field"]) in ((422, "dlq"), (422, "queue")), refused
    assert client.ask("PATCH", last, {"dlq": name}).status == 422
    assert client.ask("PATCH", queue, {"dlq": f"{name}.dlq"}).json["options"]["dlq"] is True
    assert client.ask("PATCH", middle, {"dlq": False}).json["dlq"] is None


def test_producers_cannot_forge_the_origin_of_a_dead_letter(client: Client, name: str) -> None:
    failed = client.queue(f"{name}-failed")
    queue = client.queue(name, dlq=f"{name}-failed")
    client.post(f"{failed}/messages", {"payload": 1, "headers": {"penstock-origin": name, "mine": "x"}})
    assert client.post(f"{queue}/dlq/requeue").json["matched"] == 0
    assert poll(client, failed)[0]["headers"] == {"mine": "x"}


def test_the_tree_names_a_queue_by_its_path(client: Client, name: str) -> None:
    configure, path = "/api/v1/configure", {"ns": name, "task": "t"}
    client.post(configure, {**path, "queue": "failed"})
    options = {"deadLetterQueue": f"{name}/t/failed", "retryLimit": 0}
    made = client.post(configure, {**path, "queue": "q", "options": options})
    assert made.json["options"]["deadLetterQueue"] == f"{name}/t/failed"
    client.post("/api/v1/push", {"items": [{**path, "queue": "q", "payload": 1, "transactionId": f"{name}-1"}]})
    (message,) = client.get(f"/api/v1/pop/ns/{name}/task/t/queue/q").json["messages"]
    failing = {"transactionId": message["transactionId"], "status": "failed"}
    assert client.post("/api/v1/ack", failing).json["status"] == "dead_letter"
    (letter,) = client.get(f"/api/v1/pop/ns/{name}/task/t/queue/failed?wait=true").json["messages"]
    done = {"transactionId": letter["transactionId"], "status": "completed"}
    assert (letter["payload"], client.post("/api/v1/ack", done).status) == (1, 200)


def test_a_key_can_only_name_queues_that_it_may_push_to(serve: Fresh) -> None:
    server = serve(auth_token="a-token")
    with server.client() as admin:
        queue, _ = admin.queue("mine"), admin.queue("theirs")
        key = admin.post(f"{queue}/keys", {"rights": ["admin"]}).json["key"]
        with server.client(key) as holder:
            assert holder.ask("PATCH", queue, {"dlq": "theirs"}).status == 403
            assert holder.ask("PATCH", queue, {"dlq": "mine.dlq"}).status == 200
        assert admin.ask("PATCH", queue, {"dlq": "theirs"}).status == 200


def test_a_named_dead_letter_queue_works_without_a_server(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path / 'tasks.db'}") as client:
        client.create_queue("failed")
        queue = client.create_queue("q", max_attempts=1, dlq="failed")
        queue.push({"n": 1})
        (message,) = queue.lease()
        message.nack(error="broken")
        assert [each.payload for each in client.queue("failed").peek()] == [{"n": 1}]
        assert queue.redrive().moved == 1
        assert queue.stats().ready == 1
        with pytest.raises(InvalidInput, match="its own"):
            client.queue("q").configure(dlq="q")


def test_a_redrive_of_one_group_moves_no_other(client: Client, name: str) -> None:
    client.queue(f"{name}-failed")
    client.queue(name, dlq=f"{name}-failed", max_attempts=1)
    for error in ("timeout after 3 s", "timeout after 9 s", "bad json"):
        push(client, f"/queues/{name}", {"payload": error})
        [leased] = poll(client, f"/queues/{name}")
        nacked = client.post(f"/queues/{name}/nack", {"id": leased["id"], "token": leased["token"], "error": error})
        assert nacked.status == 200
    body = {"where": {"groups": ["timeout after # s"]}}
    dry = client.post(f"/queues/{name}/dlq/requeue", {**body, "dry_run": True})
    assert dry.json == {"matched": 2, "moved": 0, "skipped": 2}
    assert client.post(f"/queues/{name}/dlq/requeue", body).json == {"matched": 2, "moved": 2, "skipped": 0}
    assert client.get(f"/queues/{name}-failed/stats").json["ready"] == 1
