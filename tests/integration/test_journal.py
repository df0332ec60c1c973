"""The journal over HTTP, on the command line, and beside a LiteQueue file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock import LiteQueue
from penstock.journal.drainer import journal_folder
from penstock.journal.reader import JournalReader
from tests.conformance.replay import log_events
from tests.integration.command_line import Queues
from tests.integration.serving import Client, Running, running

ARROW = "application/vnd.apache.arrow.stream"


def events_until(client: Client, name: str, *, wait_for: str) -> list[dict[str, object]]:
    """Return the events of a queue once they include an event of this kind."""
    events, offset = [], 0
    while not any(event["kind"] == wait_for for event in events):
        page = client.get(f"/journal/events?from={offset}&queue={name}&wait_ms=60000").json
        events += page["events"]
        offset = page["next"]
    return events


def run_message_cycle(client: Client, queue: str) -> int:
    """Push one message that fails once and is then acked."""
    (pushed,) = client.post(f"{queue}/messages", {"messages": [{"payload": {"n": 2**60}, "priority": 3}]}).json[
        "message_ids"
    ]
    for verb in ("nack", "ack"):
        (leased,) = client.post(f"{queue}/poll?wait_ms=60000").json["messages"]
        item = {"id": leased["id"], "token": leased["token"]}
        client.post(f"{queue}/{verb}", item | ({"error": "ouch", "delay_ms": 0} if verb == "nack" else {}))
    return int(pushed)


def test_a_history_is_in_order_and_has_every_column(client: Client, queue: str, name: str) -> None:
    message_id = run_message_cycle(client, queue)
    events = events_until(client, name, wait_for="acked")
    assert [event["kind"] for event in events] == ["queue", "pushed", "leased", "nacked", "leased", "acked"]
    pushed, acked = events[1], events[-1]
    assert (pushed["id"], pushed["priority"], pushed["payload"]) == (message_id, 3, {"n": 2**60})
    assert acked["pushed_at"] == pushed["at"]
    assert acked["first_leased_at"] == events[2]["at"]
    assert acked["leased_at"] == events[4]["at"]
    assert acked["attempts"] == 2
    assert [error["error"] for error in acked["details"]["errors"]] == ["ouch"]
    assert all(event["uuid"] == pushed["uuid"] for event in events[2:])


def test_events_can_be_filtered_by_kind(client: Client, queue: str, name: str) -> None:
    run_message_cycle(client, queue)
    events_until(client, name, wait_for="acked")
    page = client.get(f"/journal/events?queue={name}&kind=pushed,acked").json
    assert [event["kind"] for event in page["events"]] == ["pushed", "acked"]


def test_the_same_events_can_be_read_as_arrow(client: Client, queue: str, name: str) -> None:
    run_message_cycle(client, queue)
    events = events_until(client, name, wait_for="acked")
    first, last = events[0]["offset"], events[-1]["offset"]
    answer = client.get(f"/journal/events?from={first}&limit={last - first + 1}", accept=ARROW)
    assert answer.headers["content-type"] == ARROW
    assert int(answer.headers["x-penstock-next"]) == last + 1
    table = pa.ipc.open_stream(answer.body).read_all()
    rows = [row for row in table.to_pylist() if row["queue"] == name]
    assert [(row["offset"], row["kind"], row["id"]) for row in rows] == [
        (event["offset"], event["kind"], event.get("id")) for event in events
    ]
    assert rows[1]["body"] == b'{"n": %d}' % 2**60


def test_a_journal_without_bodies_leaves_them_out(client: Client, name: str) -> None:
    run_message_cycle(client, client.queue(name, journal="meta"))
    pushed = events_until(client, name, wait_for="acked")[1]
    assert "payload" not in pushed


def test_a_queue_can_be_excluded_from_the_journal(client: Client, name: str, server: Running) -> None:
    run_message_cycle(client, client.queue(name, journal="off"))
    run_message_cycle(client, client.queue(name + "b"))
    events_until(client, name + "b", wait_for="acked")
    page = client.get(f"/journal/events?queue={name}").json
    assert [event["kind"] for event in page["events"]] == ["queue"]


def test_a_consumer_has_a_durable_position(client: Client) -> None:
    assert client.ask("PUT", "/journal/consumers/lake", {"offset": 1}).status == 200
    shown = client.get("/journal").json
    (consumer,) = [each for each in shown["consumers"] if each["consumer"] == "lake"]
    assert (consumer["offset"], consumer["lag"]) == (1, shown["next"] - 2)
    assert client.ask("PUT", "/journal/consumers/lake", {"offset": 0}).status == 409
    assert client.delete("/journal/consumers/lake").status == 200


def test_the_journal_continues_after_a_restart(tmp_path: Path) -> None:
    for number in (1, 2):
        with running(tmp_path) as server, server.client() as client:
            run_message_cycle(client, client.queue(f"q{number}"))
    offsets = [event.offset for event in log_events(journal_folder(tmp_path / "penstock.db"))]
    assert sorted(set(offsets)) == list(range(len(set(offsets))))
    with running(tmp_path, journal=False) as server, server.client() as client:
        assert client.get("/journal").status == 404


def test_a_server_that_is_stopped_at_once_leaves_a_complete_journal(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        with running(folder) as server, server.client() as client:
            client.post(f"{client.queue('q')}/messages", {"payload": 1})
        events = [event.kind for event in log_events(journal_folder(folder / "penstock.db"))]
        assert [kind for kind in events if kind != "worker"] == ["queue", "pushed"]


def test_a_redrive_is_recorded_with_its_caller(client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    client.post(f"{queue}/messages", {"payload": 1})
    (leased,) = client.post(f"{queue}/poll").json["messages"]
    client.post(f"{queue}/nack", {"id": leased["id"], "token": leased["token"]})
    client.post(f"{queue}/dlq/requeue")
    redriven = events_until(client, name, wait_for="redriven")[-1]
    assert redriven["details"]["by"]


@pytest.mark.parametrize("place", ["http", "data"])
def test_the_command_line_shows_the_journal(place: str, tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        run_message_cycle(client, client.queue("emails"))
        events_until(client, "emails", wait_for="acked")
        at = ("--url", f"http://127.0.0.1:{server.port}") if place == "http" else ("--data", str(tmp_path))
        commands = Queues(at, place)
        events = commands.ok("journal", "tail", "--from", "0", "--limit", "6", "--queue", "emails")
        assert [line.split("  ")[1].strip() for line in events.splitlines()] == [
            "queue",
            "pushed",
            "leased",
            "nacked",
            "leased",
            "acked",
        ]
        assert commands.json("journal", "show")["next"] >= 6


def test_a_litequeue_file_has_a_journal_on_request(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with LiteQueue(path) as queue:
        queue.put(b"before")
    assert not journal_folder(path).exists()
    with LiteQueue(path, journal=True) as queue:
        queue.put(b"a")
        with queue.process():
            pass
    with LiteQueue(path) as queue:
        queue.put(b"b")
    page = JournalReader(journal_folder(path)).read()
    assert [(event.kind, event.body) for event in page.events] == [
        ("queue", None),
        ("pushed", b"a"),
        ("leased", None),
        ("acked", None),
        ("pushed", b"b"),
    ]


def test_a_long_running_program_drains_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.sqlite.store.JOURNAL_BACKLOG_BYTES", 10_000)
    path = tmp_path / "tasks.db"
    with LiteQueue(path, journal=True, durability="relaxed") as queue:
        for number in range(1_000):
            queue.put(str(number).encode())
        events = JournalReader(journal_folder(path)).read().events
        assert 500 < sum(event.kind == "pushed" for event in events) <= 1_000
