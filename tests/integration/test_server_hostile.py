"""Hostile clients are limited, refused or dropped. The full set of attacks is tests/robustness/hostile.py."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from penstock.server.http import connection
from tests.integration.conftest import Fresh
from tests.integration.serving import Client, Process, Running, process
from tests.robustness.hostile import HEAD, QUICK, prepare, run

WANTED: dict[str, str | tuple[str, ...]] = {
    "huge_body": "413 ",
    "huge_chunked_body": "413 ",
    "deep_json": "413 ",
    "nested_json": "400 ",
    "wide_json": "413 ",
    "bad_utf8": "400 ",
    "huge_header": "431 ",
    "many_headers": "431 ",
    "endless_head": ("431 ", "reset"),
    "not_http": "400 ",
    "pipelining": "500 answered",
    "half_closed": "200 closed",
}


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(tmp_path_factory.mktemp("besieged"), "--no-access-log") as server:
        prepare(server)
        yield server


@pytest.mark.parametrize("attack", [name for name in QUICK if name in WANTED])
def test_an_attack_is_limited_and_others_are_served(besieged: Process, attack: str) -> None:
    [result] = asyncio.run(run(besieged, (attack,), 0))
    assert result.outcome.startswith(WANTED[attack]), result
    assert result.grew_mb < 200, result
    assert result.slowest_ms < 20_000, result


def test_many_idle_sockets_do_not_block_others(besieged: Process) -> None:
    [result] = asyncio.run(run(besieged, (), 500))
    assert result.outcome == "500 open at once, 0 refused"


def closed_after(sock: socket.socket) -> float:
    started = time.monotonic()
    sock.settimeout(30)
    try:
        while sock.recv(65_536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - started


@pytest.mark.parametrize(
    "sent",
    [b"", HEAD, HEAD + b"content-length: 1000\r\n\r\n{", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n\r\n"],
    ids=["nothing", "partial head", "partial body", "line end after a request"],
)
def test_a_slow_client_is_dropped(
    server: Running, client: Client, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS_MAX", 0.3)
    monkeypatch.setattr(connection, "BODY_SECONDS_GRACE", 0.3)
    with server.connect() as sock:
        if sent.endswith(b"\r\n\r\n\r\n"):
            sock.sendall(sent[:-2])
            assert sock.recv(4_096).startswith(b"HTTP/1.1 200")
            sent = b"\r\n"
        sock.sendall(sent)
        assert closed_after(sock) < 20
    assert client.get("/healthz").status == 200


def test_a_steady_upload_is_not_dropped(server: Running, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_SECONDS_GRACE", 0.2)
    body = b'{"payload": 1' + b" " * 20_000 + b"}"
    with server.connect() as sock:
        sock.sendall(
            f"POST {queue}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        )
        for first in range(0, len(body), 1_000):
            sock.sendall(body[first : first + 1_000])
            time.sleep(0.03)
        assert sock.recv(4_096).startswith(b"HTTP/1.1 201")


def test_a_client_that_does_not_read_is_dropped(
    server: Running, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS_MAX", 0.3)
    for _ in range(40):
        client.post(f"{queue}/messages", {"payload": "x" * 500_000})
    with server.connect() as sock:
        sock.sendall(f"GET {queue}/export HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        deadline = time.monotonic() + 30
        while b'route="/queues/{queue}/export",status="499"' not in client.get("/metrics").body:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_too_many_connections_are_refused_with_an_error(serve: Fresh) -> None:
    server = serve(connections_max=5)
    socks = [server.connect() for _ in range(5)]
    time.sleep(0.2)
    with server.connect() as sock:
        answer = sock.recv(4_096)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert b"too_many_connections" in answer
    for sock in socks:
        sock.close()
    deadline = time.monotonic() + 20
    while True:
        with server.client() as client:
            if client.get("/healthz").status == 200:
                break
        assert time.monotonic() < deadline
