"""The analytics endpoints of the tree API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.support import eventually
from tests.integration.conftest import Fresh, serving_from
from tests.integration.serving import Client, Running

API = "/api/v1"
NOTHING = {"pending": 0, "processing": 0, "completed": 0, "failed": 0, "deadLetter": 0, "total": 0}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def busy(client: Client, name: str) -> str:
    """A namespace with two tasks: five messages pushed, one completed, one failed, one leased."""
    push(client, name, "t", 1, 2, 3, 4)
    push(client, name, "u", 5)
    popped = client.get(f"{API}/pop/ns/{name}/task/t?batch=3").json["messages"]
    for message, status in zip(popped, ("completed", "failed"), strict=False):
        answer = client.post(f"{API}/ack", {"transactionId": message["transactionId"], "status": status})
        assert answer.status == 200
    return name


def push(client: Client, ns: str, task: str, *payloads: int) -> None:
    items = [{"ns": ns, "task": task, "queue": "q", "payload": payload} for payload in payloads]
    assert client.post(f"{API}/push", {"items": items}).status == 201


def read(client: Client, path: str) -> Any:
    answer = client.get(f"{API}/analytics/{path}")
    assert answer.status == 200, answer
    return answer.json


def test_a_namespace_is_the_sum_of_its_queues(client: Client, busy: str) -> None:
    found = read(client, f"ns/{busy}")
    assert found["namespace"] == busy
    expected = {"pending": 3, "processing": 1, "completed": 1, "failed": 1, "deadLetter": 0, "total": 5}
    assert found["totals"] == expected
    first, second = found["queues"]
    assert (first["queue"], first["ns"], first["task"], first["name"]) == (f"{busy}/t/q", busy, "t", "q")
    assert first["options"]["leaseTime"] == 300
    assert second["stats"] == NOTHING | {"pending": 1, "total": 1}
    assert read(client, f"ns/{busy}?limit=1")["totals"] == expected


def test_a_task_is_a_part_of_its_namespace(client: Client, busy: str) -> None:
    found = read(client, f"ns/{busy}/task/u")
    assert (found["namespace"], found["task"]) == (busy, "u")
    assert found["totals"] == found["queues"][0]["stats"] == NOTHING | {"pending": 1, "total": 1}


def test_an_unused_namespace_is_empty(client: Client, name: str) -> None:
    assert read(client, f"ns/{name}") == {"namespace": name, "totals": NOTHING, "queues": []}


def test_queues_and_depths_are_listed_in_pages(client: Client, busy: str) -> None:
    names: list[str] = []
    after = ""
    while True:
        page = read(client, f"queues?limit=1{after}")
        names += [queue["queue"] for queue in page["queues"]]
        if "next" not in page:
            break
        after = f"&after={page['next'].replace('/', '%2F')}"
    assert names == sorted(names)
    depths = read(client, "queue-depths")["depths"]
    assert [depth["queue"] for depth in depths] == names
    assert {"queue": f"{busy}/t/q", "depth": 2, "processing": 1} in depths


def test_a_flat_queue_has_no_namespace(client: Client, name: str) -> None:
    client.queue(name)
    (found,) = [queue for queue in read(client, "queues")["queues"] if queue["queue"] == name]
    assert (found["ns"], found["task"], found["name"]) == (None, None, name)


def test_roll_ups_over_a_window_agree_with_totals(client: Client, busy: str) -> None:
    now = read(client, f"ns/{busy}")
    found = read(client, f"ns/{busy}?interval=5m")
    assert found["totals"] == now["totals"]
    series = found["queues"][0]["series"]
    assert len(series) == 12
    assert series[0]["timestamp"] > series[-1]["timestamp"]
    assert sum(point["completed"] for point in series) == 1
    assert (series[0]["pending"], series[-1]["pending"]) == (2, 0)
    long_ago = read(client, f"ns/{busy}?from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z")
    assert long_ago["totals"] == NOTHING
    assert "series" not in long_ago["queues"][0]


@pytest.mark.parametrize("path", ["queues", "ns/any", "ns/any/task/t", "queue-depths", "throughput", "latency"])
def test_a_response_about_unrecorded_times_has_a_note(client: Client, path: str) -> None:
    source = read(client, f"{path}?from=2020-01-01T00:00:00Z&to=2020-01-01T00:05:00Z")["source"]
    assert "there is no lake of this journal" in source["note"]
    assert "source" not in read(client, f"{path}?interval=minute")


def test_depths_over_a_window_are_those_at_the_end_of_each_step(client: Client, busy: str) -> None:
    found = {each["queue"]: each for each in read(client, "queue-depths?interval=hour")["depths"]}[f"{busy}/t/q"]
    assert (found["depth"], found["processing"]) == (2, 1)
    assert [(point["depth"], point["processing"]) for point in found["series"]] == [(2, 1)]


def test_throughput_counts_completed_messages_newest_first(client: Client, busy: str) -> None:
    points = read(client, "throughput")["throughput"]
    assert len(points) == 60
    assert points[0]["timestamp"] > points[1]["timestamp"]
    completed = sum(point["messagesPerMinute"] for point in points)
    assert completed >= 1
    (hour,) = read(client, "throughput?interval=hour")["throughput"]
    assert hour["messagesPerMinute"] == pytest.approx(completed / 60, abs=0.01)


def test_latency_is_reported_by_queue_after_the_sweep(client: Client, busy: str) -> None:
    def known() -> bool:
        found = {each["queue"]: each for each in read(client, "latency?interval=1h")["latency"]}[f"{busy}/t/q"]
        percentiles = [found[kind]["p50"] for kind in ("wait", "service", "total")]
        if None in percentiles:
            return False
        assert len(found["series"]) == 1
        return True

    eventually(known)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=yesterday", "from"),
        ("to=2020-01-01T00:00:00", "to"),
        ("from=2020-01-02T00:00:00Z&to=2020-01-01T00:00:00Z", "from"),
        ("from=2020-01-01T00:00:00Z&to=2021-01-01T00:00:00Z&interval=1m", "interval"),
        ("from=0001-01-01T00:00:00%2B12:00", "from"),
        ("to=0001-01-01T00:10:00%2B01:00", "to"),
        ("to=9999-12-31T23:30:00-12:00", "to"),
        ("interval=0m", "interval"),
        ("limit=0", "limit"),
    ],
)
def test_an_invalid_window_is_refused(client: Client, query: str, field: str) -> None:
    answer = client.get(f"{API}/analytics/queues?{query}")
    assert (answer.status, answer.json["field"]) == (422, field)


@pytest.mark.parametrize("path", ["queues", "queue-depths", "throughput", "latency"])
@pytest.mark.parametrize("query", ["to=0001-01-01T00:10:00Z", "to=9999-12-31T23:59:59.999Z"])
def test_a_window_can_end_at_the_largest_time(client: Client, path: str, query: str) -> None:
    assert client.get(f"{API}/analytics/{path}?{query}&interval=1m").status == 200


def test_analytics_require_access_to_all_queues(serve: Fresh) -> None:
    server = serve(auth_token="a-token")
    with server.client() as admin:
        admin.queue("mine")
        key = admin.post("/queues/mine/keys").json["key"]
        assert admin.get(f"{API}/analytics/queues").status == 200
    with server.client(key) as client:
        for path in ("queues", "ns/a", "ns/a/task/b", "queue-depths", "throughput", "latency"):
            assert client.get(f"{API}/analytics/{path}").status == 403
