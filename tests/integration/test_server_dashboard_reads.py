"""The dashboard's reads on both stores: overview, lists, message histories, and dead letters by error."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from websockets.sync.client import connect

from penstock.core.error_groups import error_group
from tests.integration.conftest import serving_from
from tests.integration.serving import Client, Running

PATIENCE = 60.0


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("looking")) as server:
        yield server


def push(client: Client, queue: str, *payloads: Any) -> list[int]:
    ids: list[int] = client.post(f"{queue}/messages", {"messages": [{"payload": each} for each in payloads]}).json[
        "message_ids"
    ]
    return ids


def lease(client: Client, queue: str, batch: int = 1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = client.post(f"{queue}/poll?batch={batch}&wait_ms=0").json["messages"]
    return messages


def nack(client: Client, queue: str, *errors: str) -> None:
    leased = lease(client, queue, len(errors))
    items = [{"id": m["id"], "token": m["token"], "error": e} for m, e in zip(leased, errors, strict=True)]
    assert client.post(f"{queue}/nack", {"items": items}).status == 200


def history_of(client: Client, queue: str, message: int, kinds: int) -> dict[str, Any]:
    """Return the history of a message once the journal has this many events, which are logged after the commit."""
    deadline = time.monotonic() + PATIENCE
    while True:
        life: dict[str, Any] = client.get(f"{queue}/messages/{message}/events").json
        if len(life["events"]) >= kinds or time.monotonic() > deadline:
            return life


def test_the_overview_adds_up_all_queues(server: Running, client: Client) -> None:
    queue, other = client.queue("sum.a", max_attempts=1), client.queue("sum/b/c")
    push(client, queue, 1, 2, 3)
    push(client, other, 4)
    nack(client, queue, "bad")
    items = [{"id": each["id"], "token": each["token"]} for each in lease(client, queue)]
    client.post(f"{queue}/ack", {"items": items})
    found = client.get("/api/v1/analytics/overview?minutes=5&step_minutes=1").json
    deadline = time.monotonic() + PATIENCE
    while found["totals"]["deadLetter"] == 0 and time.monotonic() < deadline:
        # Concurrent requests share one read, so the first result may be an older one.
        found = client.get("/api/v1/analytics/overview?minutes=5&step_minutes=1").json
    mine = next(each for each in found["busiest"] if each["queue"] == "sum.a")
    assert (mine["pushed"], mine["completed"], mine["failed"], mine["died"]) == (3, 1, 1, 1)
    assert (mine["pending"], mine["deadLetter"]) == (1, 1)
    assert len(found["series"]) == 5
    assert sum(point["pushed"] for point in found["series"]) == found["totals"]["pushed"]
    assert found["series"][0]["pending"] == found["totals"]["pending"]
    assert found["oldestAgeMs"] >= 0
    assert client.get("/api/v1/analytics/overview?minutes=500000").status == 422


def test_the_canary_is_not_traffic(client: Client) -> None:
    def completed() -> float:
        points = client.get("/api/v1/analytics/throughput").json["throughput"]
        return sum(point["messagesPerMinute"] for point in points)

    push(client, client.queue("beside.the.canary"), 1)
    before = completed()
    canary = client.queue("penstock.canary")
    push(client, canary, "tweet", "tweet")
    (first,) = lease(client, canary)
    client.post(f"{canary}/ack", {"id": first["id"], "token": first["token"]})
    # No other test requests this window, so it is not cached.
    found = client.get("/api/v1/analytics/overview?minutes=7").json
    listed = [each["name"] for each in client.get("/queues?limit=1000").json["queues"]]
    waiting = sum(client.get(f"/queues/{quote(name, safe='')}").json["ready"] for name in listed)
    assert "penstock.canary" in listed
    assert found["queues"] == len(listed) - 1
    assert found["totals"]["pending"] == waiting - 1
    assert "penstock.canary" not in [each["queue"] for each in found["busiest"]]
    assert completed() == before


def test_sparklines_are_returned_for_the_named_queues(client: Client) -> None:
    push(client, client.queue("line"), 1, 2)
    client.queue("line.longer")
    found = client.get("/api/v1/analytics/sparks?queues=line,nowhere&minutes=10&step_minutes=5").json["sparks"]
    assert [each["queue"]["name"] for each in found] == ["line"]
    assert sum(found[0]["pushed"]) == 2
    assert found[0]["pending"][-1] == 2
    assert client.get(f"/api/v1/analytics/sparks?queues={','.join(['q'] * 101)}").status == 422


def test_a_history_is_in_order_even_after_the_message_is_deleted(client: Client) -> None:
    queue = client.queue("life", max_attempts=2, backoff="fixed", backoff_ms=0)
    (message, other) = push(client, queue, {"n": 1}, {"n": 2})
    nack(client, queue, "first")
    life = history_of(client, queue, message, 3)
    assert life["message"]["id"] == message
    assert [event["kind"] for event in life["events"]] == ["pushed", "leased", "nacked"]
    assert life["next"] is None
    for each in lease(client, queue, 2):
        client.post(f"{queue}/ack", {"id": each["id"], "token": each["token"]})
    life = history_of(client, queue, message, 5)
    assert life["message"] is None
    assert [event["kind"] for event in life["events"]][-2:] == ["leased", "acked"]
    assert {event["id"] for event in life["events"]} == {message}
    assert [event["kind"] for event in history_of(client, queue, other, 3)["events"]] == ["pushed", "leased", "acked"]
    assert history_of(client, queue, message + 1_000_000, 0)["events"] == []


def test_dead_letters_are_grouped_and_filtered_by_error(client: Client) -> None:
    queue = client.queue("dead", max_attempts=1)
    ids = push(client, queue, 1, 2, 3)
    nack(client, queue, "timeout after 12 ms", "no user 'ada'", "timeout after 7 ms")
    found = client.get(f"{queue}/dlq/errors").json
    assert [(group["count"], group["newest_id"], group["error"]) for group in found["groups"]] == [
        (2, ids[2], "timeout after 7 ms"),
        (1, ids[1], "no user 'ada'"),
    ]
    assert (found["looked_at"], found["matched"], found["left_out"]) == (3, 3, 0)
    assert client.get(f"{queue}/dlq/errors?contains=user").json["matched"] == 1


def test_every_dead_letter_is_counted_grouped_and_redriven(client: Client) -> None:
    """Older dead letters still count when more than 5,000 newer ones precede them."""
    queue = client.queue("many", max_attempts=1, dedupe_ms=0)
    client.post(f"{queue}/messages", {"messages": [{"payload": n} for n in range(6_000)]})
    leased = client.post(f"{queue}/poll?batch=6000&wait_ms=0").json["messages"]
    assert len(leased) == 6_000
    for start in range(0, 6_000, 1_000):
        items = [
            {"id": each["id"], "token": each["token"], "error": f"old {n}" if start == 0 else f"new error {n}"}
            for n, each in enumerate(leased[start : start + 1_000])
        ]
        assert client.post(f"{queue}/nack", {"items": items}).status == 200
    found = client.get(f"{queue}/dlq/errors").json
    assert (found["looked_at"], found["matched"]) == (6_000, 6_000)
    assert [(group["group"], group["count"]) for group in found["groups"]] == [("new error #", 5_000), ("old #", 1_000)]
    old = client.get(f"{queue}/dlq/errors?contains=old").json
    assert (old["looked_at"], old["matched"]) == (6_000, 1_000)

    where = {"groups": ["old #"], "died_before": found["seen_at"]}
    dry = client.post(f"{queue}/dlq/requeue", {"where": where, "dry_run": True}).json
    assert dry == {"matched": 1_000, "moved": 0, "skipped": 1_000}
    moved = client.post(f"{queue}/dlq/requeue", {"where": where}).json
    assert moved == {"matched": 1_000, "moved": 1_000, "skipped": 0}
    left = client.get(f"{queue}/dlq/errors").json
    assert [(group["group"], group["count"]) for group in left["groups"]] == [("new error #", 5_000)]


def test_dead_letters_newer_than_the_listing_are_not_redriven(client: Client) -> None:
    queue = client.queue("since", max_attempts=1)
    push(client, queue, 1)
    nack(client, queue, "broken")
    seen_at = client.get(f"{queue}/dlq/errors").json["seen_at"]
    while client.get("/server").json["now"] <= seen_at:
        pass
    push(client, queue, 2)
    nack(client, queue, "broken")
    where = {"died_before": seen_at}
    assert client.post(f"{queue}/dlq/requeue", {"where": where}).json["moved"] == 1
    assert client.get(f"{queue}/stats").json["dead"] == 1


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ("took 12 ms", "took 9 ms"),
        ("KeyError: 'a'", "KeyError: 'b'"),
        ("at 0xdeadbeef", "at 0x12"),
        ('no "x" here', 'no "y" here'),
    ],
)
def test_errors_that_differ_only_in_values_share_a_group(one: str, another: str) -> None:
    assert error_group(one) == error_group(another)


def test_digests_have_events_and_queue_depths(server: Running, client: Client) -> None:
    queue = client.queue("digested")
    with connect(f"ws://127.0.0.1:{server.port}/ws/dashboard?digest=true") as socket:
        assert json.loads(socket.recv(PATIENCE))["event"] == "history"
        push(client, queue, *range(250))
        pushed = 0
        while pushed < 250:
            digest = json.loads(socket.recv(PATIENCE))["data"]
            pushed += digest["totals"]["pushed"]
        mine = next(each for each in digest["queues"] if each["name"] == "digested")
        assert mine["ready"] == 250
        assert digest["latest"][0]["queue"] == "digested"
    with connect(f"ws://127.0.0.1:{server.port}/ws/dashboard?digest=true") as socket:
        history = json.loads(socket.recv(PATIENCE))["data"]
        at = history["fields"].index("pushed") + 1
        assert sum(point[at] for point in history["points"]) >= 250


def test_a_history_reports_when_it_starts(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def history() -> dict[str, Any]:
        with connect(f"ws://127.0.0.1:{server.port}/ws/dashboard?digest=true") as socket:
            found: dict[str, Any] = json.loads(socket.recv(PATIENCE))["data"]
            return found

    before = server.app.broker.store.clock()
    first = history()["since"]
    assert history()["since"] == first, "a reload continues the same history"
    monkeypatch.setattr("penstock.server.dashboard.activity_feed.RESUME_SECONDS", 0.0)
    found = history()
    while found["since"] == first:
        found = history()
    assert found["since"] >= before
    assert found["points"] == []


def test_the_pipeline_is_described_before_its_first_run(client: Client) -> None:
    found = client.get("/pipeline").json
    assert (found["exists"], found["tables"], found["running"]) == (False, [], False)
    assert found["installed"]


def test_concurrent_requests_share_one_read(server: Running) -> None:
    reads = []

    async def ask() -> None:
        from penstock.server.dashboard.overview import Shared
        from penstock.server.http.messages import Response

        async def read(key: int) -> Response:
            reads.append(key)
            await asyncio.sleep(0)
            return Response(200, b"%d" % key)

        shared = Shared(read)
        answers = await asyncio.gather(*(shared(key) for key in (1, 1, 2, 1)))
        assert [answer.body for answer in answers] == [b"1", b"1", b"2", b"1"]

    asyncio.run(ask())
    assert reads == [1, 2]
