"""HTTP/1.1 as our own server speaks it, byte by byte; and the application inside a server that is not ours."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from penstock.broker import Broker
from penstock.config import Settings
from penstock.server.app import App
from penstock.store.sqlite import SqliteStore
from tests.integration.serving import PATIENCE, Client, Running

BODY = b'{"payload": 1}'


def push(queue: str, *lines: str, version: str = "1.1") -> bytes:
    head = [f"POST {queue}/messages HTTP/{version}", "host: localhost", f"content-length: {len(BODY)}", *lines, "", ""]
    return "\r\n".join(head).encode()


def until_closed(sock: socket.socket) -> bytes:
    seen = b""
    while part := sock.recv(65_536):
        seen += part
    return seen


def answer(sock: socket.socket) -> tuple[bytes, bytes]:
    """One answer with a length: its head and its body."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        seen += sock.recv(65_536)
    head, _, body = seen.partition(b"\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65_536)
    assert len(body) == length
    return head, body


def test_a_request_may_come_byte_by_byte(server: Running, queue: str) -> None:
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in push(queue) + BODY:
            sock.sendall(bytes([byte]))
        head, body = answer(sock)
    assert head.startswith(b"HTTP/1.1 201 Created\r\n")
    assert json.loads(body)["duplicate"] is False


def test_pipelined_requests_are_answered_in_order(server: Running, queue: str) -> None:
    paths = [f"{queue}/poll?wait_ms={wait}" for wait in (200, 0, 100, 0)]
    ids = [f"request-{number}" for number in range(len(paths))]
    with server.connect() as sock:
        for path, name in zip(paths, ids, strict=True):
            sock.sendall(f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {name}\r\n\r\n".encode())
        seen = b""
        while seen.count(b'{"messages":[]}') < len(paths):
            seen += sock.recv(65_536)
    assert [line for line in seen.decode().split("\r\n") if line.startswith("x-request-id")] == [
        f"x-request-id: {name}" for name in ids
    ]


def test_a_client_that_asks_first_is_told_to_go_on_with_its_body(server: Running, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue, "expect: 100-continue"))
        assert sock.recv(4_096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        assert answer(sock)[0].startswith(b"HTTP/1.1 201")


def test_a_client_that_asks_first_is_refused_before_it_sends(server: Running, queue: str) -> None:
    with server.connect() as sock:
        head = f"POST {queue}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n"
        sock.sendall(head.encode() + b"expect: 100-continue\r\n\r\n")
        assert answer(sock)[0].startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(("version", "line"), [("1.1", "connection: close"), ("1.0", "accept: */*")])
def test_a_connection_that_is_not_kept_is_closed_after_the_answer(
    server: Running, queue: str, version: str, line: str
) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue, line, version=version) + BODY)
        seen = until_closed(sock)
    assert seen.startswith(b"HTTP/1.1 201")
    assert b"\r\nconnection: close\r\n" in seen


def test_a_stream_is_chunked_but_not_for_http_1_0(server: Running, client: Client, queue: str) -> None:
    client.post(f"{queue}/messages", BODY)
    for version, chunked in (("1.1", True), ("1.0", False)):
        with server.connect() as sock:
            lines = "host: localhost\r\nconnection: close\r\n\r\n"
            sock.sendall(f"GET {queue}/export HTTP/{version}\r\n{lines}".encode())
            head, _, body = until_closed(sock).partition(b"\r\n\r\n")
        assert (b"transfer-encoding: chunked" in head) is chunked
        assert body.endswith(b"\r\n0\r\n\r\n" if chunked else b"}\n")
        assert (json.loads(body.split(b"\r\n")[1] if chunked else body)["payload"]) == 1


def test_an_upgrade_is_not_taken_up_but_answered(server: Running, queue: str) -> None:
    upgrade = "host: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\n"
    with server.connect() as sock:
        sock.sendall(f"GET {queue} HTTP/1.1\r\n{upgrade}".encode())
        seen = until_closed(sock)
    assert seen.startswith(b"HTTP/1.1 200")
    assert seen.count(b"HTTP/1.1") == 1


def test_an_upgrade_with_a_body_is_refused_rather_than_read_without_it(server: Running, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue, "connection: upgrade", "upgrade: h2c") + BODY)
        seen = until_closed(sock)
    assert seen.startswith(b"HTTP/1.1 400")
    assert b"no_upgrade" in seen


def test_a_target_may_be_a_whole_url(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"GET http://localhost/healthz?#part HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answer(sock)[0].startswith(b"HTTP/1.1 200")


def test_an_idle_connection_is_closed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.protocol.IDLE_SECONDS_MAX", 0.1)
    with server.connect() as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200 OK" in until_closed(sock)


# Inside another server


@contextmanager
def mounted(folder: Path) -> Iterator[tuple[Client, App]]:
    """Under /mq of an application that uvicorn serves."""
    broker = Broker(SqliteStore(folder / "queue.db", journal=True))
    app = App(broker, Settings(access_log=False, canary_ms=0))

    async def parent(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app(dict(scope, root_path="/mq") if "path" in scope else scope, receive, send)

    listener = socket.create_server(("127.0.0.1", 0))
    foreign = uvicorn.Server(uvicorn.Config(parent, log_config=None, lifespan="on"))

    async def serve() -> None:
        await foreign.serve([listener])
        await broker.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        with Client("127.0.0.1", listener.getsockname()[1]) as client:
            yield client, app
    finally:
        foreign.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_it_runs_inside_a_server_that_is_not_ours(tmp_path: Path) -> None:
    with mounted(tmp_path) as (client, app):
        assert client.post("/mq/queues", {"name": "q"}).status == 201
        for number in range(3):
            assert client.post("/mq/queues/q/messages", {"payload": number}).status == 201
        [message] = client.post("/mq/queues/q/poll").json["messages"]
        ack = {"acks": [{"id": message["id"], "token": message["token"]}]}
        assert client.post("/mq/queues/q/poll?wait_ms=0", ack).json["acks"] == ["ok"]
        assert len(client.get("/mq/queues/q/export").body.splitlines()) == 2
        with socket.create_connection((client.host, client.port)) as sock:
            client.post("/mq/queues/q/purge")
            sock.sendall(b"POST /mq/queues/q/poll?wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            wait_until(lambda: app.broker.polls == 1)
        wait_until(lambda: app.broker.polls == 0)


def test_a_dashboard_runs_inside_a_server_that_is_not_ours(tmp_path: Path) -> None:
    with mounted(tmp_path) as (client, _):
        url = f"ws://{client.host}:{client.port}/mq/ws/dashboard"
        with connect(url) as watcher:
            client.post("/mq/queues", {"name": "q"})
            created = json.loads(watcher.recv(timeout=PATIENCE))
            assert (created["event"], created["data"]["queue"]) == ("queue.created", "q")
        with connect(url, subprotocols=[Subprotocol("penstock"), Subprotocol("other")]) as watcher:
            assert watcher.subprotocol == "penstock"
        with pytest.raises(InvalidStatus) as refused, connect(f"{url}?since={2**40}"):
            pass
        assert 400 <= refused.value.response.status_code < 500
        assert client.get("/mq/ws/dashboard").status == 426


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
