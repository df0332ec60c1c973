"""Clients that request much and read nothing use a bounded amount of memory, which is released."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from penstock.server.http import connection
from tests.integration.conftest import Fresh
from tests.integration.serving import PATIENCE, Client, Process, Running, process

READERS = 40
BOUND_MB = 400
KEPT_MB = 200


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Process]:
    with process(tmp_path, "--no-access-log") as server:
        yield server


def fill(client: Client, messages: int, size: int) -> None:
    client.queue("q")
    lines = b"".join(b'{"payload":"%s"}\n' % (b"x" * size) for _ in range(messages))
    assert client.post("/queues/q/messages", lines, content_type="application/x-ndjson").status == 201


def ask(port: int, request: str) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", port))
    sock.sendall(f"{request} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return sock


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("path", ["/queues/q/export", "/queues/q/peek?limit=1000"])
def test_the_memory_of_unread_responses_is_bounded_and_released(served: Process, path: str) -> None:
    memory = psutil.Process(served.process.pid)

    def grown() -> float:
        return (memory.memory_info().rss - before) / 1e6

    with served.client() as client:
        fill(client, 800, 20_000)
        before = memory.memory_info().rss
        readers = [ask(served.port, f"GET {path}") for _ in range(READERS)]
        assert {reader.recv(12)[:9] for reader in readers} == {b"HTTP/1.1 "}
        assert grown() < BOUND_MB
        assert client.get("/healthz").status == 200
        for reader in readers:
            reader.close()
        wait_until(lambda: grown() < KEPT_MB)


def test_a_large_import_is_read_in_bounded_memory(served: Process) -> None:
    line = b'{"state":"archived","payload":"%s"}\n' % (b"x" * 100_000)
    lines = 3_000
    memory = psutil.Process(served.process.pid)
    with served.client() as client:
        client.queue("q")
        before = memory.memory_info().rss
        connection = client.connection
        connection.putrequest("POST", "/queues/q/import")
        connection.putheader("content-type", "application/x-ndjson")
        connection.putheader("content-length", str(lines * len(line)))
        connection.endheaders()
        for _ in range(lines // 100):
            connection.send(line * 100)
            assert memory.memory_info().rss - before < 100 << 20
        response = connection.getresponse()
        assert json.loads(response.read()) == {"imported": 0, "duplicates": 0, "skipped": lines}


def test_leases_to_clients_that_do_not_read_are_bounded_and_released(
    serve: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.http.response_budget.CREDENTIAL_BYTES_MAX", 24 << 20)
    server = serve()
    with server.client() as client:
        fill(client, 200, 300_000)
        readers = [ask(server.port, "POST /queues/q/poll?wait_ms=0&batch=15") for _ in range(12)]
        assert {reader.recv(12) for reader in readers} == {b"HTTP/1.1 200", b"HTTP/1.1 429"}
        assert server.app.unsent.total <= 24 << 20
        for reader in readers:
            reader.close()
        wait_until(lambda: client.get("/queues/q/stats").json["leased"] == 0)
        assert server.app.unsent.total == 0
        assert client.get("/queues/q/stats").json["ready"] == 200


def test_a_response_above_the_budget_is_refused_and_its_messages_released(
    serve: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.http.response_budget.CREDENTIAL_BYTES_MAX", 20 << 20)
    monkeypatch.setattr(connection, "STALL_SECONDS_MAX", 3_600)
    server: Running = serve(auth_token="s3cret")
    with server.client() as client:
        fill(client, 60, 500_000)
        reader = ask(server.port, "GET /queues/q/peek?limit=30 HTTP/1.1\r\nauthorization: Bearer s3cret\r\nx: y")
        wait_until(lambda: server.app.unsent.total > 10 << 20)
        refused = client.get("/queues/q/peek?limit=30")
        assert (refused.status, refused.json["code"]) == (429, "unread_answers")
        assert refused.headers["Retry-After"] == "1"
        assert client.post("/queues/q/poll?wait_ms=0&batch=30").status == 429
        assert client.get("/queues/q/export").status == 200
        assert client.get("/queues/q/stats").json["leased"] == 0
        key = client.post("/queues/q/keys", {"rights": ["consume"]}).json["key"]
        with server.client(key) as other:
            assert other.get("/queues/q/peek?limit=30").status == 200
        reader.close()
        wait_until(lambda: server.app.unsent.total == 0)
        assert client.get("/queues/q/peek?limit=30").status == 200


def test_no_response_is_produced_until_the_client_reads_the_last_one(
    server: Running, client: Client, queue: str
) -> None:
    for _ in range(20):
        client.post(f"{queue}/messages", {"payload": "x" * 500_000})
    with server.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.sendall(f"GET {queue}/peek?limit=20 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() * 20)
        wait_until(lambda: server.app.unsent.total > 9 << 20)
        assert client.get("/readyz").status == 200
        assert server.app.unsent.total < 12 << 20
    wait_until(lambda: server.app.unsent.total == 0)
