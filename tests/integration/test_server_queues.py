"""The queue API over HTTP, endpoint by endpoint."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from penstock import LiteQueue
from tests.integration.serving import Client, Running


def push(client: Client, queue: str, *payloads: Any, **options: Any) -> list[int]:
    answer = client.post(f"{queue}/messages", {"messages": [{"payload": each, **options} for each in payloads]})
    assert answer.status == 201, answer
    ids: list[int] = answer.json["message_ids"]
    return ids


def poll(client: Client, queue: str, query: str = "wait_ms=0", body: Any = None) -> list[dict[str, Any]]:
    answer = client.post(f"{queue}/poll?{query}", body)
    assert answer.status == 200, answer
    messages: list[dict[str, Any]] = answer.json["messages"]
    return messages


def push_dead_letters(client: Client, queue: str, *errors: str) -> list[int]:
    """Push messages that are dead-lettered with these errors."""
    ids = push(client, queue, *errors)
    for message in poll(client, queue, f"wait_ms=0&batch={len(errors)}"):
        item = {"id": message["id"], "token": message["token"], "error": message["payload"]}
        assert client.post(f"{queue}/nack", item).json["results"][0]["state"] == "dead"
    return ids


# Queues


def test_creating_a_queue_is_201_then_200_and_409_if_options_differ(client: Client, name: str) -> None:
    created = client.post("/queues", {"name": name, "max_attempts": 3, "visibility_ms": 5_000})
    assert created.status == 201
    assert created.json["max_attempts"] == 3
    assert created.json["visibility_ms"] == created.json["options"]["lease_ms"] == 5_000
    assert created.json["dlq"] == f"{name}.dlq"
    assert client.post("/queues", {"name": name, "max_attempts": 3, "visibility_ms": 5_000}).status == 200
    other = client.post("/queues", {"name": name, "max_attempts": 4})
    assert (other.status, other.json["code"]) == (409, "queue_exists")
    assert isinstance(other.json["error"], str)


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "x.dlq", "a" * 256])
def test_an_invalid_name_is_refused_with_its_field(client: Client, bad: str) -> None:
    answer = client.post("/queues", {"name": bad})
    assert (answer.status, answer.json["field"]) == (422, "name")


def test_a_path_name_is_percent_encoded(client: Client, name: str) -> None:
    queue = client.queue(f"ns/{name}/queue")
    assert "%2F" in queue
    assert client.get(queue).json["name"] == f"ns/{name}/queue"
    push(client, queue, "x")
    assert [message["payload"] for message in poll(client, queue)] == ["x"]
    assert client.get(f"/queues/ns/{name}/queue").status == 404


def test_queues_are_listed_with_a_limit_and_a_cursor(client: Client, name: str) -> None:
    names = sorted(f"{name}-{letter}" for letter in "abc")
    for each in names:
        client.queue(each)
    first = client.get(f"/queues?limit=2&prefix={name}-").json
    assert [queue["name"] for queue in first["queues"]] == names[:2]
    rest = client.get(f"/queues?limit=2&prefix={name}-&after={first['next']}").json
    assert ([queue["name"] for queue in rest["queues"]], rest["next"]) == (names[2:], None)


def test_a_queue_can_be_shown_changed_and_deleted(client: Client, queue: str) -> None:
    assert client.ask("PATCH", queue, {"max_attempts": 9, "visibility_ms": 1_234}).status == 200
    shown = client.get(queue).json
    assert (shown["max_attempts"], shown["visibility_ms"]) == (9, 1_234)
    push(client, queue, 1, 2)
    refused = client.delete(queue)
    assert (refused.status, refused.json["code"]) == (409, "queue_not_empty")
    assert client.delete(f"{queue}?force=true").json["messages"] == 2
    assert client.get(queue).status == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("POST", "/messages", {"payload": 1}),
        ("POST", "/messages", {"messages": [{"payload": 1}]}),
        ("POST", "/poll?wait_ms=0", None),
        ("POST", "/poll?wait_ms=5000", None),
        ("POST", "/ack", {"id": 1, "token": "00"}),
        ("POST", "/nack", {"id": 1, "token": "00"}),
        ("POST", "/extend", {"id": 1, "token": "00"}),
        ("POST", "/release", {"id": 1, "token": "00"}),
        ("POST", "/transact", {"push": [{"payload": 1}]}),
        ("GET", "/stats", None),
        ("GET", "/peek", None),
        ("GET", "/messages/1", None),
        ("DELETE", "/messages/1", None),
        ("POST", "/purge", None),
        ("POST", "/purge?dry_run=true", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/compact", None),
        ("GET", "/dlq", None),
        ("POST", "/dlq/requeue", None),
        ("POST", "/dlq/purge", None),
        ("GET", "/events", None),
        ("GET", "/export", None),
        ("POST", "/import", None),
        ("POST", "/keys", {}),
        ("GET", "/keys", None),
        ("DELETE", "/keys/abc", None),
    ],
)
def test_an_unknown_queue_is_404(client: Client, method: str, path: str, body: Any) -> None:
    answer = client.ask(method, f"/queues/nowhere{path}", body)
    assert (answer.status, answer.json["code"]) == (404, "unknown_queue"), answer


# Pushing


def test_a_message_can_be_pushed(client: Client, queue: str) -> None:
    answer = client.post(f"{queue}/messages", {"payload": {"a": [1, 2.50, None]}, "priority": 3, "headers": {"k": "v"}})
    assert answer.status == 201
    assert answer.json["message_id"] == answer.json["id"]
    [message] = poll(client, queue)
    assert message["payload"] == {"a": [1, 2.5, None]}
    assert (message["priority"], message["attempts"], message["headers"]) == (3, 1, {"k": "v"})
    assert message["lease_expires_at"] - message["created_at"] >= 30_000
    assert message["token"]


def test_the_bytes_of_a_payload_are_kept_unchanged(client: Client, queue: str) -> None:
    sent = b'{ "z" : 1.50,\t"a":[ 1 ,2] , "\\u00e9": 10000000000000000000000 }'
    assert client.post(f"{queue}/messages", b'{"payload": ' + sent + b'  , "priority": 1}').status == 201
    assert sent in client.post(f"{queue}/poll?wait_ms=0").body


def test_a_batch_push_keeps_its_order(client: Client, queue: str) -> None:
    ids = push(client, queue, *range(10))
    assert ids == sorted(ids)
    assert [message["payload"] for message in poll(client, queue, "wait_ms=0&batch=10")] == list(range(10))


def test_ndjson_can_be_pushed(client: Client, queue: str) -> None:
    lines = b"".join(b'{"payload": %d}\r\n\n' % number for number in range(1_200)) + b'{"payload": "last"}'
    answer = client.post(f"{queue}/messages", lines, content_type="application/x-ndjson")
    assert answer.status == 201
    assert len(answer.json["message_ids"]) == 1_201
    assert client.get(f"{queue}/stats").json["ready"] == 1_201


def test_ndjson_of_large_messages_is_committed_in_parts(client: Client, queue: str) -> None:
    line = json.dumps({"payload": "x" * 400_000}).encode() + b"\n"
    answer = client.post(f"{queue}/messages", line * 200, content_type="application/x-ndjson")
    assert (answer.status, len(answer.json["message_ids"])) == (201, 200)


def test_an_invalid_ndjson_line_is_named_and_earlier_lines_are_kept(client: Client, queue: str) -> None:
    lines = b'{"payload": 1}\n' * 500 + b'{"payload": 1, "nonsense": 2}\n'
    answer = client.post(f"{queue}/messages", lines, content_type="application/x-ndjson")
    assert (answer.status, answer.json["field"]) == (422, "nonsense")
    assert answer.json["error"].startswith("line 501: ")
    assert "500 messages before it were kept" in answer.json["hint"]
    assert client.get(f"{queue}/stats").json["ready"] == 500


def test_an_ndjson_line_has_a_size_limit(client: Client, queue: str) -> None:
    line = json.dumps({"payload": "x" * 3_000_000}).encode()
    answer = client.post(f"{queue}/messages", line, content_type="application/x-ndjson")
    assert (answer.status, answer.json["code"]) == (413, "line_too_large")


def test_a_repeated_idempotency_key_returns_the_first_id(client: Client, queue: str) -> None:
    first = client.post(f"{queue}/messages", {"payload": 1, "idempotency_key": "k"})
    second = client.post(f"{queue}/messages", {"payload": 2, "idempotency_key": "k"})
    by_header = client.post(f"{queue}/messages", {"payload": 3}, Idempotency_Key="k")
    assert [first.status, second.status, by_header.status] == [201, 200, 200]
    assert first.json["id"] == second.json["id"] == by_header.json["id"]
    assert by_header.json["duplicate"] is True
    messages = [{"payload": n, "idempotency_key": key} for n, key in enumerate(["k", "new", "new"])]
    many = client.post(f"{queue}/messages", {"messages": messages}).json
    assert many["duplicates"] == [0, 2]
    assert many["message_ids"][0] == first.json["id"]
    assert many["message_ids"][1] == many["message_ids"][2]
    assert client.get(f"{queue}/stats").json["ready"] == 2


def test_the_idempotency_header_of_a_batch_names_the_whole_request(client: Client, queue: str) -> None:
    body = {"messages": [{"payload": 1}, {"payload": 2}]}
    first = client.post(f"{queue}/messages", body, Idempotency_Key="k").json
    again = client.post(f"{queue}/messages", body, Idempotency_Key="k").json
    assert again["message_ids"] == first["message_ids"]
    assert again["duplicates"] == [0, 1]
    assert client.get(f"{queue}/stats").json["ready"] == 2


@pytest.mark.parametrize("data", [b"\x00\xff\xfe", b"text"])
def test_bytes_are_returned_as_base64(client: Client, queue: str, data: bytes) -> None:
    encoded = base64.b64encode(data).decode()
    assert client.post(f"{queue}/messages", {"payload": encoded, "encoding": "base64"}).status == 201
    [message] = poll(client, queue)
    assert (message["payload"], message["encoding"]) == (encoded, "base64")
    assert client.post(f"{queue}/messages", {"payload": "not base64!", "encoding": "base64"}).json["field"] == "payload"


def test_bytes_pushed_by_another_api_are_returned_as_base64(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name)
    with LiteQueue(server.path) as lite:
        lite.put(b"\xff\x00", name)
    [message] = poll(client, queue)
    assert base64.b64decode(message["payload"]) == b"\xff\x00"


def test_delay_ttl_and_priority_are_applied(client: Client, queue: str) -> None:
    push(client, queue, "low", priority=-1)
    push(client, queue, "high", priority=9)
    push(client, queue, "late", delay_ms=60_000)
    push(client, queue, "gone", ttl_ms=1)
    time.sleep(0.01)
    assert [message["payload"] for message in poll(client, queue, "wait_ms=0&batch=9")] == ["high", "low"]
    stats = client.get(f"{queue}/stats").json
    assert (stats["scheduled"], stats["leased"], stats["totals"]["expired"]) == (1, 2, 1)


def test_a_full_queue_is_429_with_retry_after(client: Client, name: str) -> None:
    queue = client.queue(name, max_size=2)
    push(client, queue, 1, 2)
    answer = client.post(f"{queue}/messages", {"payload": 3})
    assert (answer.status, answer.json["code"]) == (429, "queue_full")
    assert int(answer.headers["Retry-After"]) >= 1


def test_a_rate_limit_is_429_with_retry_after(client: Client, name: str) -> None:
    queue = client.queue(name, push_rate=0.1, push_burst=2)
    push(client, queue, 1, 2)
    answer = client.post(f"{queue}/messages", {"payload": 3})
    assert (answer.status, answer.json["code"]) == (429, "rate_limited")
    assert 1 <= int(answer.headers["Retry-After"]) <= 10


def test_a_payload_has_a_size_limit(client: Client, queue: str) -> None:
    answer = client.post(f"{queue}/messages", {"payload": "x" * (512 << 10)})
    assert (answer.status, answer.json["code"]) == (413, "payload_too_large")


# Consuming


def test_acks_can_be_sent_with_the_next_poll(client: Client, queue: str) -> None:
    push(client, queue, 1, 2)
    [first] = poll(client, queue)
    acks = [{"id": first["id"], "token": first["token"]}, {"id": 999_999_999, "token": "00"}]
    answer = client.post(f"{queue}/poll?wait_ms=0", {"acks": acks}).json
    assert answer["acks"] == ["ok", "unknown"]
    assert [message["payload"] for message in answer["messages"]] == [2]
    assert client.get(f"{queue}/messages/{first['id']}").status == 404


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release"])
def test_a_single_settle_is_200_409_or_404(client: Client, queue: str, verb: str) -> None:
    push(client, queue, 1)
    [message] = poll(client, queue)
    item = {"id": message["id"], "token": message["token"]}
    stale = client.post(f"{queue}/{verb}", {**item, "token": "ab" * 16})
    assert (stale.status, stale.json["code"]) == (409, "lease_lost")
    unknown = client.post(f"{queue}/{verb}", {**item, "id": item["id"] + 10_000})
    assert (unknown.status, unknown.json["code"]) == (404, "unknown_message")
    done = client.post(f"{queue}/{verb}", item)
    assert (done.status, done.json["results"][0]["result"]) == (200, "ok")
    again = client.post(f"{queue}/{verb}", item)
    assert (again.status, again.json["results"][0]["result"]) == (200, "ok")
    other = client.post(f"{queue}/{'nack' if verb == 'ack' else 'ack'}", item)
    assert other.status == {"ack": 404, "nack": 409, "extend": 200, "release": 409}[verb]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release"])
def test_each_item_of_a_batch_settle_has_a_result(client: Client, queue: str, verb: str) -> None:
    push(client, queue, 1, 2)
    one, two = poll(client, queue, "wait_ms=0&batch=2")
    items = [
        {"id": one["id"], "token": one["token"]},
        {"id": two["id"], "token": "ab" * 16},
        {"id": two["id"] + 10_000, "token": two["token"]},
    ]
    answer = client.post(f"{queue}/{verb}", {"items": items})
    assert answer.status == 200
    assert [item["result"] for item in answer.json["results"]] == ["ok", "stale", "unknown"]
    alone = client.post(f"{queue}/{verb}", {"items": items[1:2]})
    assert (alone.status, alone.json["results"][0]["result"]) == (200, "stale")


def test_an_admin_can_settle_without_a_token(client: Client, queue: str) -> None:
    push(client, queue, 1)
    [message] = poll(client, queue)
    assert client.post(f"{queue}/ack", {"id": message["id"]}).status == 200


def test_a_nack_delays_the_message_and_returns_its_state(client: Client, queue: str) -> None:
    push(client, queue, 1)
    [message] = poll(client, queue)
    item = {"id": message["id"], "token": message["token"]}
    assert client.post(f"{queue}/nack", {**item, "delay_ms": 60_000}).json["results"][0]["state"] == "scheduled"
    assert client.get(f"{queue}/stats").json["scheduled"] == 1


def test_extend_postpones_the_end_of_the_lease(client: Client, queue: str) -> None:
    push(client, queue, 1)
    [message] = poll(client, queue, "wait_ms=0&visibility_ms=5000")
    item = {"id": message["id"], "token": message["token"]}
    answer = client.post(f"{queue}/extend", {**item, "ms": 600_000})
    assert answer.json["lease_expires_at"] > message["lease_expires_at"] + 500_000


def test_transact_is_all_or_nothing(client: Client, queue: str, name: str) -> None:
    other = client.queue(f"{name}-other")
    push(client, queue, 1, 2)
    one, two = poll(client, queue, "wait_ms=0&batch=2")
    body = {
        "ack": [{"id": one["id"], "token": one["token"]}],
        "nack": [{"id": two["id"], "token": "ab" * 16}],
        "push": [{"payload": "next", "queue": f"{name}-other"}],
    }
    refused = client.post(f"{queue}/transact", body)
    assert (refused.status, refused.json["code"]) == (409, "lease_lost")
    assert client.get(f"{other}/stats").json["ready"] == 0
    assert client.get(f"{queue}/stats").json["leased"] == 2
    body["nack"] = [{"id": two["id"], "token": two["token"], "error": "no"}]
    done = client.post(f"{queue}/transact", body)
    assert (done.status, done.json["acked"], done.json["nacked"]) == (200, 1, 1)
    assert [message["id"] for message in poll(client, other)] == done.json["message_ids"]
    missing = client.post(f"{queue}/transact", {"push": [{"payload": 1, "queue": "nowhere"}]})
    assert missing.status == 404
