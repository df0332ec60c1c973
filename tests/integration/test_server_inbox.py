"""The inbox API over HTTP, endpoint by endpoint."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.conftest import Fresh
from tests.integration.serving import Client, Running

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_inbox_responses_have_the_documented_fields(client: Client, serve: Fresh) -> None:
    with serve().client() as client:
        posted = client.post("/v1/messages", {"body": "hello"})
        assert posted.status == 201
        assert posted.json.keys() == {"id", "timestamp", "body"}
        assert RFC3339.fullmatch(posted.json["timestamp"])
        got = client.get("/v1/messages")
        assert (got.status, got.json) == (200, [posted.json])
        assert client.get("/v1/messages").json == []


def test_get_takes_one_by_default_in_order_and_archives(client: Client, name: str) -> None:
    for number in range(5):
        client.post("/v1/messages", {"body": f"{number}", "topic": name})
    assert [text["body"] for text in client.get(f"/v1/messages?topic={name}").json] == ["0"]
    assert [text["body"] for text in client.get(f"/v1/messages?topic={name}&limit=9").json] == ["1", "2", "3", "4"]
    [topic] = [each for each in client.get("/v1/stats").json["topics"] if each["topic"] == name]
    assert topic == {"topic": name, "new": 0, "claimed": 0, "archived": 5, "dead": 0}
    archived = client.get(f"/queues/{name}/peek?state=archived").json["messages"]
    assert {message["payload"] for message in archived} == {"0", "1", "2", "3", "4"}


def test_the_limit_has_a_configurable_default_and_maximum(serve: Fresh) -> None:
    with serve(get_limit_default=2, get_limit_max=3).client() as client:
        for number in range(10):
            client.post("/v1/messages", {"body": f"{number}"})
        assert len(client.get("/v1/messages").json) == 2
        assert len(client.get("/v1/messages?limit=3").json) == 3
        beyond = client.get("/v1/messages?limit=4")
        assert (beyond.status, beyond.json["field"]) == (422, "limit")
        assert client.get("/v1/messages?limit=0").json["field"] == "limit"


def test_a_repeated_dedupe_key_returns_the_first_message(client: Client, name: str) -> None:
    first = client.post("/v1/messages", {"body": "a", "topic": name, "dedupe_key": "k"})
    again = client.post("/v1/messages", {"body": "b", "topic": name, "dedupe_key": "k"})
    assert (first.status, again.status) == (201, 200)
    assert again.json == first.json
    assert len(client.get(f"/v1/messages?topic={name}&limit=9").json) == 1


def test_a_claimed_message_can_be_acked(client: Client, name: str) -> None:
    for body in "abc":
        client.post("/v1/messages", {"body": body, "topic": name})
    claimed = client.get(f"/v1/messages?topic={name}&mode=claim&visibility_timeout=60&limit=2").json
    assert [text["body"] for text in claimed] == ["a", "b"]
    assert all(text["token"] and RFC3339.fullmatch(text["claimed_until"]) for text in claimed)
    acks = [{"id": text["id"], "token": text["token"]} for text in claimed[:1]]
    acks += [
        {"id": claimed[1]["id"], "token": f"{name}:{'ab' * 16}"},
        {"id": claimed[1]["id"], "token": "no topic"},
        {"id": 99_999_999, "token": f"{name}:00"},
        {"id": 1, "token": "not a name!:00"},
        {"id": 1, "token": "nowhere:00"},
    ]
    done = client.post("/v1/acks", {"acks": acks})
    assert done.status == 200
    statuses = [result["status"] for result in done.json["results"]]
    assert statuses == ["archived", "stale", "unknown", "unknown", "unknown", "unknown"]
    [topic] = [each for each in client.get("/v1/stats").json["topics"] if each["topic"] == name]
    assert (topic["new"], topic["claimed"], topic["archived"]) == (1, 1, 1)


def test_an_unacked_claim_is_redelivered(client: Client, name: str) -> None:
    client.post("/v1/messages", {"body": "a", "topic": name})
    assert len(client.get(f"/v1/messages?topic={name}&mode=claim&visibility_timeout=1").json) == 1
    assert client.get(f"/v1/messages?topic={name}").json == []
    assert [text["body"] for text in client.get(f"/v1/messages?topic={name}&wait=20").json] == ["a"]


def test_an_id_out_of_range_is_refused_without_a_server_error(client: Client) -> None:
    for number in (0, -1, 2**64, 2**44):
        answer = client.post("/v1/acks", {"acks": [{"id": number, "token": "x:00"}]})
        assert (answer.status, answer.json["field"]) == (422, "acks[0].id")


def test_head_does_not_take_a_message(client: Client, name: str) -> None:
    client.post("/v1/messages", {"body": "a", "topic": name})
    answer = client.ask("HEAD", f"/v1/messages?topic={name}")
    assert answer.status == 405
    assert "HEAD" not in answer.headers["Allow"]
    assert len(client.get(f"/v1/messages?topic={name}").json) == 1


@pytest.mark.parametrize("mode", ["take", "claim"])
def test_a_post_wakes_a_waiting_get(server: Running, client: Client, name: str, mode: str) -> None:
    with ThreadPoolExecutor(1) as pool, server.client() as waiting:
        started = time.monotonic()
        answer = pool.submit(waiting.get, f"/v1/messages?topic={name}&wait=50&mode={mode}")
        wait_for_polls(server, 1)
        client.post("/v1/messages", {"body": "a", "topic": name})
        assert [text["body"] for text in answer.result().json] == ["a"]
        assert time.monotonic() - started < 40
    [topic] = [each for each in client.get("/v1/stats").json["topics"] if each["topic"] == name]
    assert topic["archived" if mode == "take" else "claimed"] == 1


@pytest.mark.parametrize(
    "query", ["wait=nan", "wait=-1", "wait=61", "wait=x", "limit=x", "mode=x", "nonsense=1", "topic="]
)
def test_an_invalid_query_is_422_and_named(client: Client, query: str) -> None:
    answer = client.get(f"/v1/messages?{query}")
    assert answer.status == 422
    assert answer.json["field"] == query.split("=")[0]


def test_stats_are_listed_in_pages(client: Client, name: str) -> None:
    for letter in "ab":
        client.post("/v1/messages", {"body": "x", "topic": f"{name}-{letter}"})
    first = client.get("/v1/stats?limit=1").json
    assert first["next"]
    assert first["topics"] != client.get(f"/v1/stats?limit=1&after={first['next']}").json["topics"]


def test_health_is_public(client: Client) -> None:
    assert client.get("/health").json == {"status": "ok"}


def test_json_pushed_by_another_api_is_returned_as_text(client: Client, name: str) -> None:
    queue = client.queue(name)
    client.post(f"{queue}/messages", {"payload": {"a": 1}})
    assert [text["body"] for text in client.get(f"/v1/messages?topic={name}").json] == ['{"a": 1}']


def wait_for_polls(server: Running, count: int) -> None:
    deadline = time.monotonic() + 30
    while server.app.broker.polls < count:
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
