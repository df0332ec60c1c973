"""`penstock queue …`, `stats`, `dlq …` and `key …`, over HTTP and on a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command_line import Queues, server

names = (f"queue-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(params=["http", "db", "data"])
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Queues:
    if request.param == "http":
        return Queues(("--url", request.getfixturevalue("url")), "http")
    return Queues((f"--{request.param}", str(tmp_path / "place")), request.param)


@pytest.fixture
def name(queues: Queues) -> str:
    name = next(names)
    queues.ok("queue", "add", "--name", name, "--max-attempts", "1", "--backoff-ms", "0")
    return name


def push(queues: Queues, name: str, *payloads: str) -> None:
    queues.ok("message", "enqueue", "--queue", name, "--file", "-", stdin="\n".join(payloads).encode())


def push_dead_letter(queues: Queues, name: str, error: str) -> int:
    """Push one message and nack it into the dead letters."""
    push(queues, name, "1")
    [leased] = queues.json("message", "poll", "--queue", name)["messages"]
    queues.ok("message", "nack", "--queue", name, "--ids", f"{leased['id']}:{leased['token']}", "--error", error)
    return int(leased["id"])


def test_a_queue_is_created_shown_listed_and_deleted(queues: Queues, name: str) -> None:
    shown = queues.json("queue", "show", "--name", name)
    assert (shown["name"], shown["max_attempts"], shown["visibility_ms"]) == (name, 1, 30_000)
    assert shown["stats"]["ready"] == shown["ready"] == 0
    assert name in [queue["name"] for queue in queues.json("queue", "list")["queues"]]
    assert queues.json("queue", "list", "--prefix", name)["queues"][0]["name"] == name
    assert queues.json("queue", "rm", "--name", name) == {"dropped": name, "messages": 0}
    gone = queues.run("queue", "show", "--name", name)
    assert gone.code == 1
    assert gone.err == (
        f"error: queue '{name}' does not exist"
        " (list queues with `penstock queue list`, create one with `penstock queue create`)\n"
    )


def test_creating_a_queue_again_with_other_options_is_refused(queues: Queues, name: str) -> None:
    same = ("queue", "add", "--name", name, "--max-attempts", "1", "--backoff-ms", "0")
    assert queues.json(*same)["created"] is False
    other = queues.run("queue", "add", "--name", name, "--max-attempts", "9")
    assert other.code == 1
    assert "max_attempts" in other.err
    assert "`penstock queue update`" in other.err
    assert queues.json("queue", "set", "--name", name, "--max-attempts", "9")["max_attempts"] == 9


def test_all_options_are_flags(queues: Queues) -> None:
    name = next(names)
    made = queues.json(
        *("queue", "add", "--name", name, "--visibility-ms", "5000", "--max-attempts", "3"),
        *("--backoff", "fixed", "--backoff-ms", "10", "--backoff-max-ms", "20", "--max-in-flight", "4"),
        *("--delay-ms", "5", "--window-ms", "6", "--ttl-ms", "7000", "--priority", "-8", "--max-size", "9"),
        *("--push-rate", "1.5", "--push-burst", "10", "--no-dlq", "--archive-ms", "none"),
        *("--dedupe-ms", "11", "--journal", "off", "--require-lease-token"),
        *("--max-age-alert-ms", "12"),
    )
    assert made["created"] is True
    assert made["options"] == {
        "lease_ms": 5000,
        "max_attempts": 3,
        "backoff": "fixed",
        "backoff_ms": 10,
        "backoff_max_ms": 20,
        "max_in_flight": 4,
        "delay_ms": 5,
        "window_ms": 6,
        "ttl_ms": 7000,
        "priority": -8,
        "max_size": 9,
        "push_rate": 1.5,
        "push_burst": 10,
        "dlq": False,
        "require_lease_token": True,
        "archive_ms": None,
        "dedupe_ms": 11,
        "journal": "off",
        "max_age_alert_ms": 12,
    }


def test_a_queue_of_a_tree_is_named_by_its_path(queues: Queues) -> None:
    name = f"shop/mail/{next(names)}"
    queues.ok("queue", "add", "--name", name)
    push(queues, name, "1")
    assert queues.json("message", "get", "--queue", name)["messages"][0]["payload"] == 1


def test_a_queue_with_messages_is_deleted_only_with_force(queues: Queues, name: str) -> None:
    push(queues, name, "1", "2")
    refused = queues.run("queue", "rm", "--name", name)
    assert (refused.code, "--force" in refused.err) == (1, True)
    assert queues.json("queue", "rm", "--name", name, "--force") == {"dropped": name, "messages": 2}


def test_purge_counts_before_it_removes(queues: Queues, name: str) -> None:
    push(queues, name, "1", "2", "3")
    assert queues.json("queue", "purge", "--name", name, "--dry-run") == {"purged": 3, "dry_run": True}
    assert queues.json("queue", "purge", "--name", name, "--yes") == {"purged": 3, "dry_run": False}
    assert queues.json("stats", "--queue", name)["ready"] == 0


def test_purging_the_dead_letter_name_removes_only_dead_letters(queues: Queues, name: str) -> None:
    push_dead_letter(queues, name, "dead")
    push(queues, name, "1", "2")
    assert queues.json("queue", "purge", "--name", f"{name}.dlq", "--dry-run") == {"purged": 1, "dry_run": True}
    assert queues.json("queue", "purge", "--name", f"{name}.dlq", "--yes") == {"purged": 1, "dry_run": False}
    assert queues.json("stats", "--queue", name)["ready"] == 2


def test_a_paused_queue_delivers_nothing(queues: Queues, name: str) -> None:
    push(queues, name, "1")
    assert queues.json("queue", "pause", "--name", name)["paused"] is True
    empty = queues.run("message", "get", "--queue", name)
    assert (empty.code, empty.out, empty.err) == (0, "", f"no messages available in {name}\n")
    assert queues.json("queue", "resume", "--name", name)["paused"] is False
    assert len(queues.json("message", "get", "--queue", name)["messages"]) == 1


def test_peek_returns_the_requested_number_in_any_state(queues: Queues, name: str) -> None:
    push(queues, name, *map(str, range(1_200)))
    seen = queues.json("queue", "peek", "--name", name, "--limit", "1100")["messages"]
    assert [message["payload"] for message in seen] == list(range(1_100))
    leased = queues.json("message", "poll", "--queue", name, "--batch", "2")["messages"]
    peeked = queues.json("queue", "peek", "--name", name, "--state", "leased")["messages"]
    assert {message["id"] for message in peeked} == {message["id"] for message in leased}


def test_stats_show_one_queue_or_all(queues: Queues, name: str) -> None:
    push(queues, name, "1")
    stats = queues.json("stats", "--queue", name)
    assert (stats["queue"], stats["ready"], stats["totals"]["pushed"]) == (name, 1, 1)
    assert {"1m", "5m", "15m"} == stats["rates"].keys()
    every = queues.json("stats")["queues"]
    assert next(each for each in every if each["queue"] == name)["ready"] == 1
    assert name in queues.ok("stats")


def test_dead_letters_are_listed_and_requeued_by_error(queues: Queues, name: str) -> None:
    push_dead_letter(queues, name, "disk on fire")
    drowned = push_dead_letter(queues, name, "drowned")
    [newest, oldest] = queues.json("dlq", "list", "--queue", name)["messages"]
    assert (newest["id"], newest["error"], oldest["error"]) == (drowned, "drowned", "disk on fire")
    assert "disk on fire" in queues.ok("dlq", "list", "--queue", name)
    fire = ("dlq", "requeue", "--queue", name, "--error-contains", "fire")
    assert queues.json(*fire, "--dry-run") == {"matched": 1, "moved": 0, "skipped": 1}
    assert queues.json(*fire) == {"matched": 1, "moved": 1, "skipped": 0}
    assert queues.json("stats", "--queue", name)["dead"] == 1
    again = queues.json("queue", "requeue-dlq", "--name", name, "--ids", str(drowned), "--rate", "100")
    assert again["moved"] == 1
    assert queues.json("stats", "--queue", name)["ready"] == 2


def test_dead_letters_are_purged(queues: Queues, name: str) -> None:
    push_dead_letter(queues, name, "gone")
    assert queues.json("dlq", "purge", "--queue", name, "--dry-run") == {"purged": 1, "dry_run": True}
    assert queues.json("dlq", "purge", "--queue", name) == {"purged": 1, "dry_run": False}
    assert queues.json("dlq", "list", "--queue", name) == {"messages": []}


def test_a_key_is_shown_once(queues: Queues, name: str) -> None:
    made = queues.json("key", "add", "--queue", name, "--name", "worker", "--right", "consume")
    assert made["key"].startswith(f"pk_{made['id']}_")
    assert made["rights"] == ["consume"]
    [listed] = queues.json("key", "list", "--queue", name)["keys"]
    assert listed == {key: value for key, value in made.items() if key != "key"}
    assert queues.json("key", "rm", "--queue", name, "--id", made["id"]) == {"removed": made["id"]}
    again = queues.run("key", "rm", "--queue", name, "--id", made["id"])
    assert (again.code, again.err) == (1, "error: there is no such key on this queue\n")


def test_compact_checks_that_the_queue_exists(queues: Queues, name: str) -> None:
    assert queues.json("queue", "compact", "--name", name) == {"compacted": name}
    assert queues.run("queue", "compact", "--name", "nowhere").code == 1


def test_only_creating_a_queue_creates_the_file(tmp_path: Path) -> None:
    place = Queues(("--db", str(tmp_path / "typo.db")), "db")
    missing = place.run("queue", "list")
    assert (missing.code, missing.out) == (1, "")
    assert "does not exist" in missing.err
    assert list(tmp_path.iterdir()) == []
    place.ok("queue", "add", "--name", "q")
    assert (tmp_path / "typo.db").is_file()
