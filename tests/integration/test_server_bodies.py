"""A request body is read only if the caller is authorized, and costs no more memory than its size."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest

from tests.integration.serving import Client, Running, running

TOKEN, READER = "s3cret-token", "r3ad-token"
BODYLESS = ("GET", "HEAD")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("guarded"), auth_token=TOKEN, read_token=READER) as server:
        yield server


def announce(server: Running, token: str, method: str, path: str) -> int:
    """Send a request head without its body, and return the status of the response."""
    with server.connect() as sock:
        sock.settimeout(10)
        lines = f"host: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: 10\r\n\r\n"
        sock.sendall(f"{method} {path} HTTP/1.1\r\n{lines}".encode())
        try:
            return int(sock.recv(4_096).split()[1])
        except TimeoutError:
            pytest.fail(f"{method} {path} waits for a body")


def test_every_write_refuses_the_read_only_token_before_reading_the_body(guarded: Running) -> None:
    routes = [route for route in guarded.app.routes if route.method not in BODYLESS and route.right != "public"]
    assert len(routes) > 20
    for route in routes:
        path = re.sub(r"{\w+}", "x", route.path)
        assert (route.path, announce(guarded, READER, route.method, path)) == (route.path, 403)


def test_a_queue_key_without_the_right_is_refused_before_the_body_is_read(guarded: Running) -> None:
    with guarded.client() as admin:
        queue = admin.queue("n/t/keyed")
        keys = {right: admin.post(f"{queue}/keys", {"rights": [right]}).json["key"] for right in ("push", "consume")}
    for right, path in (("consume", "push"), ("push", "ack"), ("push", "ack/batch"), ("consume", "configure")):
        assert announce(guarded, keys[right], "POST", f"/api/v1/{path}") == 403
    with guarded.client(keys["push"]) as client:
        item = {"ns": "n", "task": "t", "queue": "keyed", "payload": 1}
        assert client.post("/api/v1/push", {"items": [item]}).status == 201
        assert client.post("/api/v1/push", {"items": [item | {"queue": "other"}]}).status == 403


def test_a_line_can_arrive_in_many_pieces(server: Running, client: Client, queue: str) -> None:
    line = json.dumps({"payload": "x" * 3_000}).encode() + b"\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in line * 2 + line.strip())
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {queue}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
        sock.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        for start in range(0, len(chunks), 500):
            sock.sendall(chunks[start : start + 500])
        sock.sendall(b"0\r\n\r\n")
        assert sock.recv(4_096).startswith(b"HTTP/1.1 201")
    assert client.get(f"{queue}/stats").json["ready"] == 3
