"""`penstock message …` without files: leasing, settling, reading and removing, over HTTP and on a file."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.command_line import PENSTOCK, Queues, clean_environment, server

names = (f"messages-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(params=["http", "db"])
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Queues:
    if request.param == "http":
        return Queues(("--url", request.getfixturevalue("url")), "http")
    return Queues(("--db", str(tmp_path / "q.db")), "db")


@pytest.fixture
def name(queues: Queues) -> str:
    name = next(names)
    queues.ok("queue", "add", "--name", name)
    return name


def push(queues: Queues, name: str, payload: str, *flags: str) -> int:
    pushed = queues.json("message", "enqueue", "--queue", name, "--payload", payload, *flags)
    return int(pushed["message_id"])


def lease(queues: Queues, name: str, batch: int = 1) -> list[str]:
    leased = queues.json("message", "poll", "--queue", name, "--batch", str(batch))["messages"]
    return [f"{message['id']}:{message['token']}" for message in leased]


def test_a_payload_is_returned_unchanged(queues: Queues, name: str) -> None:
    payload = '{"text": "żółć ☃", "n": 123456789012345678901234567890, "list": [1.5, null, true]}'
    message_id = push(
        queues, name, payload, "--priority", "5", "--ttl-ms", "60000", "--header", "a=b=c", "--header", "d="
    )
    shown = queues.json("message", "peek", "--queue", name, "--id", str(message_id))
    assert shown["payload"] == json.loads(payload)
    assert (shown["priority"], shown["state"]) == (5, "ready")
    assert shown["headers"] == {"a": "b=c", "d": ""}
    assert shown["expires_at"] - shown["created_at"] == 60_000
    [leased] = queues.json("message", "poll", "--queue", name)["messages"]
    assert leased["payload"] == json.loads(payload)
    assert leased["headers"] == {"a": "b=c", "d": ""}


def test_a_repeated_key_adds_nothing(queues: Queues, name: str) -> None:
    first = queues.json("message", "enqueue", "--queue", name, "--payload", "1", "--idempotency-key", "k")
    again = queues.json("message", "enqueue", "--queue", name, "--payload", "2", "--idempotency-key", "k")
    assert first == {"added": 1, "duplicates": 0, "message_id": first["message_id"], "duplicate": False}
    assert again == {"added": 0, "duplicates": 1, "message_id": first["message_id"], "duplicate": True}


def test_a_delayed_message_is_scheduled(queues: Queues, name: str) -> None:
    message_id = push(queues, name, "1", "--delay-ms", "3600000")
    assert queues.json("message", "peek", "--queue", name, "--id", str(message_id))["state"] == "scheduled"
    assert queues.json("message", "get", "--queue", name) == {"messages": []}


def test_a_payload_can_come_from_stdin(queues: Queues, name: str) -> None:
    queues.ok("message", "enqueue", "--queue", name, "--payload", "-", stdin=b'\n{"a":\n 1}\n')
    assert queues.json("message", "get", "--queue", name)["messages"][0]["payload"] == {"a": 1}


def test_get_takes_a_message_and_shows_no_token(queues: Queues, name: str) -> None:
    for number in range(3):
        push(queues, name, str(number))
    taken = queues.json("message", "get", "--queue", name, "--batch", "2")["messages"]
    assert [message["payload"] for message in taken] == [0, 1]
    assert all("token" not in message and "lease_expires_at" not in message for message in taken)
    stats = queues.json("stats", "--queue", name)
    assert (stats["ready"], stats["leased"], stats["totals"]["acked"]) == (1, 0, 2)


def test_poll_leases_until_settled_by_token(queues: Queues, name: str) -> None:
    for number in range(4):
        push(queues, name, str(number))
    done, failed, kept, stolen = lease(queues, name, 4)
    assert queues.json("message", "ack", "--queue", name, "--ids", done)["results"][0]["result"] == "ok"
    nacked = queues.json("message", "nack", "--queue", name, "--ids", failed, "--delay-ms", "60000", "--error", "no")
    assert nacked["results"] == [{"id": int(failed.partition(":")[0]), "result": "ok", "state": "scheduled"}]
    extended = queues.json("message", "extend-lease", "--queue", name, "--id", kept, "--ms", "600000")
    assert extended["results"][0]["result"] == "ok"
    shown = queues.json("message", "peek", "--queue", name, "--id", kept.partition(":")[0])
    assert shown["lease_expires_at"] == extended["lease_expires_at"]
    assert shown["lease_expires_at"] - shown["leased_at"] >= 600_000
    wrong = f"{stolen.partition(':')[0]}:{'0' * 32}"
    stale = queues.run("message", "ack", "--queue", name, "--ids", wrong, "--json")
    assert (stale.code, stale.json["results"][0]["result"]) == (1, "stale")


def test_a_bare_id_settles_the_current_lease(queues: Queues, name: str) -> None:
    message_id = push(queues, name, "1")
    lease(queues, name)
    assert queues.json("message", "ack", "--queue", name, "--ids", str(message_id))["results"][0]["result"] == "ok"


def test_a_partly_failed_settle_gives_exit_code_3(queues: Queues, name: str) -> None:
    push(queues, name, "1")
    [held] = lease(queues, name)
    partly = queues.run("message", "ack", "--queue", name, "--ids", f"{held},{1 << 40}", "--json")
    assert partly.code == 3
    assert [each["result"] for each in partly.json["results"]] == ["ok", "unknown"]
    assert partly.err.startswith("error: 1 of 2 failed")
    assert partly.err.count("\n") == 1


def test_ids_can_come_from_stdin(queues: Queues, name: str) -> None:
    for number in range(3):
        push(queues, name, str(number))
    held = "\n".join(lease(queues, name, 3)).encode()
    results = queues.json("message", "ack", "--queue", name, "--ids", "-", stdin=held)["results"]
    assert [each["result"] for each in results] == ["ok"] * 3


def test_ids_that_are_not_utf_8_are_a_usage_error(queues: Queues, name: str) -> None:
    refused = queues.run("message", "ack", "--queue", name, "--ids", "-", stdin=b"\xff\x00")
    assert (refused.code, refused.out) == (2, "")
    assert "does not start with a message id" in refused.err


def test_messages_can_be_removed_by_id(queues: Queues, name: str) -> None:
    first, second = push(queues, name, "1"), push(queues, name, "2")
    removed = queues.run("message", "remove", "--queue", name, "--id", f"{first},{1 << 40},{second}", "--json")
    assert removed.code == 3
    assert [each["result"] for each in removed.json["results"]] == ["ok", "unknown", "ok"]
    again = queues.run("message", "remove", "--queue", name, "--id", str(first))
    assert again.code == 1
    assert again.err == f"error: message {first} does not exist in {name}\n"
    peeked = queues.run("message", "peek", "--queue", name, "--id", str(first))
    assert (peeked.code, f"message {first} does not exist" in peeked.err) == (1, True)


def test_a_queue_with_a_secret_accepts_signed_messages_only(queues: Queues) -> None:
    name = next(names)
    secret = "a secret of the queue"
    queues.ok("queue", "add", "--name", name, "--secret", secret)
    unsigned = queues.run("message", "enqueue", "--queue", name, "--payload", "1")
    assert (unsigned.code, "signed" in unsigned.err) == (2, True)
    assert push(queues, name, '{"a": 1}', "--secret", secret)
    [leased] = queues.json("message", "get", "--queue", name)["messages"]
    assert leased["headers"]["penstock-signature"].startswith("t=")
    assert queues.run("queue", "add", "--name", name, "--secret", "another secret of it").code == 1
    assert queues.run("queue", "set", "--name", name, "--secret", "short").code == 2
    queues.ok("queue", "set", "--name", name, "--secret", "none")
    assert push(queues, name, "2")


def test_json_output_is_the_same_over_http_and_on_a_file(url: str, tmp_path: Path) -> None:
    shapes = []
    for queues in (Queues(("--url", url), "http"), Queues(("--db", str(tmp_path / "q.db")), "db")):
        name = "alike"
        queues.ok("queue", "add", "--name", name, "--max-attempts", "1")
        message_id = push(queues, name, '{"a": 1}', "--header", "h=1", "--idempotency-key", "k")
        looks = [
            queues.json("queue", "show", "--name", name),
            queues.json("message", "peek", "--queue", name, "--id", str(message_id)),
            *queues.json("message", "poll", "--queue", name, "--worker", "w")["messages"],
            queues.json("message", "extend-lease", "--queue", name, "--id", str(message_id)),
            queues.json("message", "nack", "--queue", name, "--ids", str(message_id), "--error", "e"),
            *queues.json("dlq", "list", "--queue", name)["messages"],
            queues.json("stats", "--queue", name),
        ]
        shapes.append([shape_of(look) for look in looks])
    assert shapes[0] == shapes[1]


def shape_of(value: object) -> object:
    if isinstance(value, dict):
        return {name: shape_of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape_of(each) for each in value]
    return type(value).__name__ if value is not None else "null"


def test_a_poll_can_wait_longer_than_the_server_allows_per_request(tmp_path: Path) -> None:
    with server(tmp_path, PENSTOCK_WAIT_MS_MAX="100") as address, ThreadPoolExecutor(1) as threads:
        queues = Queues(("--url", address), "http")
        queues.ok("queue", "add", "--name", "q")
        environment = clean_environment()
        command = [PENSTOCK, "message", "poll", "--queue", "q", "--wait-ms", "30000", "--json", "--url", address]
        polling = threads.submit(subprocess.run, command, capture_output=True, env=environment, check=True)
        time.sleep(1.5)
        assert not polling.done()
        push(queues, "q", "7")
        assert [message["payload"] for message in json.loads(polling.result().stdout)["messages"]] == [7]
