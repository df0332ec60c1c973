"""The server's output on stderr: JSON lines, or a banner on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import penstock
from tests.integration.serving import RUN, clean_environment, process


def test_an_access_log_line_has_time_client_path_and_queue(tmp_path: Path) -> None:
    items = [{"ns": "n", "task": "t", "queue": "one", "payload": 1}]
    with process(tmp_path) as server, server.client() as client:
        client.queue("a.b")
        client.post("/queues/a%2Eb/messages?", {"payload": 1})
        client.get("/v1/messages?topic=inbox")
        client.post("/v1/messages", {"topic": "letters", "body": "x"})
        client.post("/api/v1/push", {"items": items})
        client.post("/api/v1/push", {"items": [*items, {**items[0], "queue": "two"}]})
        client.get("/api/v1/pop/ns/n/task/t/queue/one")
        client.get("/api/v1/pop/ns/n")
        client.get("/" + "x" * 5_000)
        assert server.terminate() == 0
        lines = [line for line in server.lines() if "route" in line][1:]
    assert [line["queue"] for line in lines] == ["a.b", "inbox", "letters", "n/t/one", "2 queues", "n/t/one", "n", None]
    assert lines[0]["path"] == "/queues/a%2Eb/messages"
    assert len(lines[-1]["path"]) == 1_024
    assert {line["client"] for line in lines} == {"127.0.0.1"}
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)
    assert abs(datetime.now(UTC) - times[0]) < timedelta(hours=1)


def test_the_log_is_json_from_start_to_stop(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        assert server.terminate() == 0
        first, *_, stopping, stopped = [json.loads(line) for line in server.text().splitlines()]
    assert (first["event"], first["url"]) == ("started", f"http://127.0.0.1:{server.port}")
    assert first["data"].endswith("penstock.db")
    assert first["durability"].startswith("full")
    assert (first["version"], first["pid"]) == (penstock.__version__, server.process.pid)
    assert (stopping["event"], stopped["event"]) == ("stopping", "stopped")
    assert datetime.fromisoformat(first["time"]) <= datetime.fromisoformat(stopped["time"])


def test_on_a_terminal_the_banner_is_text(tmp_path: Path) -> None:
    terminal, other_end = pty.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        serving = [sys.executable, "-c", RUN, "serve", "--port", "0"]
        started = subprocess.Popen(serving, stderr=other_end, cwd=tmp_path, env=clean_environment())
        os.close(other_end)
        output = b""
        try:
            while b"/docs" not in output:
                output += screen.read(4_096)
        finally:
            started.terminate()
            started.wait()
    assert re.match(rb"penstock listens on http://127.0.0.1:\d+ without authentication\r\n  data        ", output)
