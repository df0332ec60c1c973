"""`penstock message enqueue --file` streams, validates, and resumes after an interruption."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command_line import PATIENCE_SECONDS, Queues, server, spawn

LINES = 4_000

names = (f"enqueue-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"PENSTOCK_PAYLOAD_BYTES": "1000", "PENSTOCK_REQUEST_BYTES": "50000"}
    with server(tmp_path_factory.mktemp("server"), **settings) as address:
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


def write(path: Path, lines: int) -> Path:
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(lines)))
    return path


def ready(queues: Queues, name: str) -> int:
    return int(queues.json("stats", "--queue", name)["ready"])


def payloads(queues: Queues, name: str) -> Counter[int]:
    exported = queues.ok("export", "--queue", name).splitlines()
    return Counter(json.loads(line)["payload"]["n"] for line in exported)


def test_a_killed_enqueue_that_runs_again_adds_each_line_once(queues: Queues, name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "many.ndjson", LINES)
    command = ("message", "enqueue", "--queue", name, "--file", str(file))
    process = spawn(*command, "--batch", "1", *queues.flags, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while ready(queues, name) == 0:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
    finally:
        process.kill()
        process.communicate()
    before = ready(queues, name)
    assert 0 < before < LINES
    again = queues.json(*command)
    assert again == {"added": LINES - before, "duplicates": before}
    assert payloads(queues, name) == Counter(range(LINES))


def test_the_same_file_is_added_again_only_on_request(queues: Queues, name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "few.ndjson", 5)
    command = ("message", "enqueue", "--queue", name, "--file", str(file))
    assert queues.json(*command) == {"added": 5, "duplicates": 0}
    result = queues.run(*command)
    assert result.err == "5 lines were enqueued before; --again pushes them once more\n"
    assert queues.json(*command, "--again") == {"added": 5, "duplicates": 0}
    moved = file.rename(tmp_path / "elsewhere.ndjson")
    assert queues.json(*command[:-1], str(moved))["duplicates"] == 5
    file.write_text('{"n": 0}\n')
    assert queues.json(*command)["added"] == 1


def test_equal_lines_of_a_file_are_separate_messages(queues: Queues, name: str, tmp_path: Path) -> None:
    file = tmp_path / "equal.ndjson"
    file.write_text('{"n": 1}\n' * 3)
    assert queues.json("message", "enqueue", "--queue", name, "--file", str(file))["added"] == 3


def test_lines_from_a_pipe_have_no_keys_by_default(queues: Queues, name: str) -> None:
    command = ("message", "enqueue", "--queue", name, "--file", "-")
    assert queues.json(*command, stdin=b"1\n2\n")["added"] == 2
    assert queues.json(*command, stdin=b"1\n2\n")["added"] == 2
    assert queues.json(*command, "--idempotency-key", "k", stdin=b"1\n2\n")["added"] == 2
    assert queues.json(*command, "--idempotency-key", "k", stdin=b"1\n2\n3")["added"] == 1


def test_any_json_value_is_a_payload_and_blank_lines_are_skipped(queues: Queues, name: str, tmp_path: Path) -> None:
    file = tmp_path / "values.ndjson"
    file.write_bytes('\ufeff{"a": 1}\r\n\n  [1, 2]\t\n"żółć"\nnull\n-0.5'.encode())
    assert queues.json("message", "enqueue", "--queue", name, "--file", str(file))["added"] == 5
    taken = queues.json("message", "get", "--queue", name, "--batch", "9")["messages"]
    assert [message["payload"] for message in taken] == [{"a": 1}, [1, 2], "żółć", None, -0.5]


def test_a_bad_line_of_a_file_is_found_before_anything_is_added(queues: Queues, name: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.ndjson"
    for bad in (b"{broken", b'{"a":1,"a":2}', b"\xff", b"NaN", b"[" * 70 + b"]" * 70):
        file.write_bytes(b"1\n2\n" + bad + b"\n4\n")
        refused = queues.run("message", "enqueue", "--queue", name, "--file", str(file), "--batch", "1")
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith(f"error: line 3 of {file}: ")
        assert refused.err.endswith("(nothing was enqueued)\n")
    assert ready(queues, name) == 0


def test_a_bad_line_in_a_pipe_stops_after_the_earlier_lines(queues: Queues, name: str) -> None:
    refused = queues.run("message", "enqueue", "--queue", name, "--file", "-", stdin=b"1\n2\n{\n4\n")
    assert refused.code == 3
    assert refused.err.startswith("error: line 3 of stdin: ")
    assert refused.err.count("\n") == 1
    assert ready(queues, name) == 2


def test_an_envelope_has_the_same_fields_as_the_flags(queues: Queues, name: str) -> None:
    lines = b"""
        {"payload": {"a": 1}, "priority": 9, "headers": {"x": "y"}}
        {"payload": 2, "idempotency_key": "own"}
        {"payload": 3, "delay_ms": 3600000}
        {"payload": "aGk=", "encoding": "base64"}
    """
    command = ("message", "enqueue", "--queue", name, "--file", "-", "--envelope", "--header", "z=1")
    assert queues.json(*command, stdin=lines)["added"] == 4
    assert queues.json(*command, stdin=lines)["duplicates"] == 1
    first, again, second, text = queues.json("message", "get", "--queue", name, "--batch", "4")["messages"]
    assert (first["payload"], first["priority"], first["headers"]) == ({"a": 1}, 9, {"x": "y"})
    assert (again["payload"], second["payload"], second["headers"]) == ({"a": 1}, 2, {"z": "1"})
    assert (text["payload"], text["encoding"]) == ("aGk=", "base64")
    unknown = queues.run(*command, stdin=b'{"payload": 1, "colour": "red"}')
    assert (unknown.code, "colour" in unknown.err) == (1, True)
    missing = queues.run(*command, stdin=b'{"priority": 1}')
    assert (missing.code, "payload" in missing.err) == (1, True)


def test_batches_are_halved_until_the_server_accepts_them(url: str, tmp_path: Path) -> None:
    queues = Queues(("--url", url), "http")
    name = next(names)
    queues.ok("queue", "add", "--name", name)
    file = tmp_path / "wide.ndjson"
    file.write_text("".join(f'"{"x" * 800}{number}"\n' for number in range(300)))
    assert queues.json("message", "enqueue", "--queue", name, "--file", str(file))["added"] == 300


def test_refused_lines_can_be_corrected_and_enqueued_again(url: str, tmp_path: Path) -> None:
    queues = Queues(("--url", url), "http")
    name = next(names)
    queues.ok("queue", "add", "--name", name)
    file = tmp_path / "large.ndjson"
    file.write_text(f'1\n2\n"{"x" * 2_000}"\n4\n')
    command = ("message", "enqueue", "--queue", name, "--file", str(file), "--batch", "1")
    refused = queues.run(*command)
    assert refused.code == 3
    assert refused.err.startswith(f"error: lines 3 to 3 of {file}: ")
    assert "2 lines are enqueued" in refused.err
    key = refused.err.partition("--idempotency-key ")[2].strip(") \n")
    file.write_text("1\n2\n3\n4\n")
    assert queues.json(*command, "--idempotency-key", key) == {"added": 2, "duplicates": 2}


def test_enqueue_waits_for_a_rate_limited_queue(queues: Queues, tmp_path: Path) -> None:
    name = next(names)
    queues.ok("queue", "add", "--name", name, "--push-rate", "1000", "--push-burst", "1000")
    file = write(tmp_path / "fast.ndjson", 1_500)
    done = queues.run("message", "enqueue", "--queue", name, "--file", str(file), "--batch", "750", "--json")
    assert (done.code, done.json) == (0, {"added": 1_500, "duplicates": 0})


def test_no_input_is_a_usage_error_but_an_empty_file_is_not(queues: Queues, name: str, tmp_path: Path) -> None:
    assert queues.run("message", "enqueue", "--queue", name).code == 2
    assert queues.run("message", "enqueue", "--queue", name, "--file", str(tmp_path / "no")).code == 2
    (tmp_path / "empty").touch()
    done = queues.json("message", "enqueue", "--queue", name, "--file", str(tmp_path / "empty"))
    assert done == {"added": 0, "duplicates": 0}
