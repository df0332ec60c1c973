"""The server's HTTP/1.1 implementation, byte by byte, and the application inside another server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.server.app import App
from penstock.server.http import connection
from penstock.server.http.exchange import HttpExchange
from penstock.store.sqlite import SqliteStore
from tests.integration.serving import PATIENCE, Client, Running
from tests.proof.http_bytes import fuzz_server

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
    """Read one response that has a content length; return its head and its body."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        seen += sock.recv(65_536)
    head, _, body = seen.partition(b"\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65_536)
    assert len(body) == length
    return head, body


def statuses(seen: bytes) -> list[int]:
    """Return the status of each response that has a content length."""
    found = []
    while seen:
        head, _, rest = seen.partition(b"\r\n\r\n")
        found.append(int(head.split()[1]))
        seen = rest[int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]) :]
    return found


def test_a_request_can_arrive_byte_by_byte(server: Running, queue: str) -> None:
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


def test_a_client_that_expects_100_continue_receives_it(server: Running, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue, "expect: 100-continue"))
        assert sock.recv(4_096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        assert answer(sock)[0].startswith(b"HTTP/1.1 201")


def test_a_client_that_expects_100_continue_is_refused_before_it_sends(server: Running, queue: str) -> None:
    with server.connect() as sock:
        head = f"POST {queue}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n"
        sock.sendall(head.encode() + b"expect: 100-continue\r\n\r\n")
        assert answer(sock)[0].startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(("version", "line"), [("1.1", "connection: close"), ("1.0", "accept: */*")])
def test_a_connection_without_keep_alive_is_closed_after_the_response(
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


def test_an_unsupported_upgrade_is_ignored(server: Running, queue: str) -> None:
    upgrade = "host: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with server.connect() as sock:
        sock.sendall(f"GET {queue} HTTP/1.1\r\n{upgrade}".encode())
        assert statuses(until_closed(sock)) == [200, 505]


def test_an_unsupported_upgrade_with_a_body_is_read_completely(server: Running, client: Client, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue, "connection: upgrade", "upgrade: h2c") + BODY)
        assert answer(sock)[0].startswith(b"HTTP/1.1 201")
    assert client.get(f"{queue}/stats").json["ready"] == 1


def test_a_request_target_can_be_an_absolute_url(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"GET http://localhost/healthz?#part HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answer(sock)[0].startswith(b"HTTP/1.1 200")


# Bytes after a request


def test_garbage_after_a_request_does_not_prevent_its_response(server: Running, client: Client, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue) + BODY + b"\x16\x03\x01 garbage\r\n\r\n" + b"more" * 50_000)
        assert statuses(until_closed(sock)) == [201, 400]
    assert client.get(f"{queue}/stats").json["ready"] == 1


def test_bytes_after_a_closing_request_are_ignored(server: Running, client: Client, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue, "connection: close") + BODY + push(queue) + BODY)
        assert statuses(until_closed(sock)) == [201]
    assert client.get(f"{queue}/stats").json["ready"] == 1


def test_requests_are_answered_after_a_half_close(server: Running, client: Client, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall((push(queue) + BODY) * 3 + push(queue))
        sock.shutdown(socket.SHUT_WR)
        assert statuses(until_closed(sock)) == [201, 201, 201]
    assert client.get(f"{queue}/stats").json["ready"] == 3


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_half_closed_client_gets_a_response_but_no_lease(
    server: Running, client: Client, queue: str, wait_ms: int
) -> None:
    if not wait_ms:
        client.post(f"{queue}/messages", BODY)
    with server.connect() as sock:
        # While the request waits, the server certainly notices that the client has closed its side.
        slow = f"POST {queue}/poll?wait_ms={wait_ms} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n"
        sock.sendall(slow.encode())
        time.sleep(0.05)
        sock.sendall(b"{}")
        sock.shutdown(socket.SHUT_WR)
        seen = until_closed(sock)
    if wait_ms:
        assert statuses(seen) == [400]
        assert b"half_closed" in seen
    else:
        assert statuses(seen) in ([200], [400])
    assert client.get(f"{queue}/stats").json["leased"] == (0 if b"half_closed" in seen or wait_ms else 1)


def test_a_malformed_body_is_refused(server: Running, client: Client, queue: str) -> None:
    head = f"POST {queue}/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    for chunks in (b"zz\r\n", b"3\r\n{}  \r\n", b"-1\r\n", b"e\r\n" + BODY + b"\r\n0\r\nbad trailer\r\n\r\n"):
        with server.connect() as sock:
            sock.sendall(head + chunks)
            assert statuses(until_closed(sock)) == [400]
    assert client.get(f"{queue}/stats").json["ready"] == 0


def test_a_malformed_body_is_answered_after_a_half_close(server: Running, queue: str) -> None:
    for call in ("messages", "purge"):
        with server.connect() as sock:
            head = f"POST {queue}/{call} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
            sock.sendall(head.encode())
            sock.shutdown(socket.SHUT_WR)
            assert len(statuses(until_closed(sock))) == 1, call


# Request heads


HOST = "host: localhost"


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET /healthz HTTP/1.1", (), 400),
        ("GET /healthz HTTP/1.1", (HOST, HOST), 400),
        ("GET /healthz HTTP/1.0", (), 200),
        ("GET /healthz HTTP/1.0", (HOST, HOST), 400),
        ("GET /healthz", (HOST,), 400),
        ("GET /healthz HTTP/2.0", (HOST,), 505),
        ("GET /healthz RTSP/1.0", (HOST,), 400),
        ("GET  /healthz HTTP/1.1", (HOST,), 400),
        ("BREW /healthz HTTP/1.1", (HOST,), 501),
        ("PATCH /healthz HTTP/1.1", (HOST,), 405),
        ("QUERY /healthz HTTP/1.1", (HOST,), 405),
        ("GET /healthz HTTP/1.1", (HOST, "transfer-encoding: gzip, chunked"), 501),
        ("GET /healthz HTTP/1.1", (HOST, "transfer-encoding: chunked", "content-length: 3"), 400),
        ("GET /healthz HTTP/1.1", (HOST, "content-length: 3", "content-length: 3"), 400),
        ("GET /healthz HTTP/1.0", (HOST, "transfer-encoding: chunked"), 400),
        ("GET /healthz HTTP/1.1", (HOST, "a : b"), 400),
        ("GET /healthz HTTP/1.1", (HOST, "a: b", " c"), 400),
        ("GET /healthz HTTP/1.1", ("Host: localhost", "Connection: x", "connection: Close"), 200),
        ("GET nowhere HTTP/1.1", (HOST,), 400),
    ],
)
def test_a_request_head_is_accepted_or_refused(
    server: Running, line: str, headers: tuple[str, ...], status: int
) -> None:
    with server.connect() as sock:
        sock.sendall("\r\n".join([line, *headers, "", ""]).encode())
        sock.shutdown(socket.SHUT_WR)
        assert statuses(until_closed(sock)) == [status]


def test_every_response_has_a_date(server: Running) -> None:
    for path in (b"/healthz", b"/no/such/path", b"nowhere"):
        with server.connect() as sock:
            sock.sendall(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
            head = answer(sock)[0].decode()
        date = parsedate_to_datetime(head.partition("\r\ndate: ")[2].partition("\r\n")[0])
        assert abs((datetime.now(UTC) - date).total_seconds()) < 60


def test_an_http_1_0_client_gets_no_100_continue(server: Running, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(push(queue, "expect: 100-continue", version="1.0"))
        time.sleep(0.05)
        sock.sendall(BODY)
        assert statuses(until_closed(sock)) == [201]


# Many requests at once


def test_a_pipelined_request_is_parsed_after_earlier_ones_are_answered(
    server: Running, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bytes] = []
    request = connection.Request

    def counted(*arguments: Any) -> Any:
        begun.append(arguments[2])
        return request(*arguments)

    monkeypatch.setattr(connection, "Request", counted)
    count = 2_000
    with server.connect() as sock:
        sock.sendall(f"POST {queue}/poll?wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        wait_until(lambda: server.app.broker.polls == 1)
        sending = threading.Thread(
            target=sock.sendall, args=(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * count,)
        )
        sending.start()
        with server.connect() as other:
            other.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            until_closed(other)
        assert begun.count(b"/healthz") == 0
        client.post(f"{queue}/messages", BODY)
        seen = b""
        while seen.count(b'{"status":"ok"}') < count:
            seen += sock.recv(1 << 20)
        sending.join()


def test_pipelined_requests_do_not_starve_other_clients(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = 0
    answered: list[int] = []
    is_over = threading.Event()
    send = HttpExchange.send

    def tick() -> None:
        nonlocal turn
        turn += 1
        if not is_over.is_set():
            server.loop.call_soon(tick)

    async def record_turn(self: HttpExchange, *arguments: Any) -> None:
        answered.append(turn)
        await send(self, *arguments)

    monkeypatch.setattr(HttpExchange, "send", record_turn)
    server.loop.call_soon_threadsafe(tick)
    try:
        with server.connect() as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200)
            seen = b""
            while seen.count(b'{"status":"ok"}') < 200:
                seen += sock.recv(1 << 20)
    finally:
        is_over.set()
    assert max(Counter(answered).values()) <= 2


def test_an_idle_connection_is_closed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.http.connection.IDLE_SECONDS_MAX", 0.1)
    with server.connect() as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200 OK" in until_closed(sock)


def test_an_unfinished_head_request_is_answered_without_a_body(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"HEAD /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nab")
        sock.shutdown(socket.SHUT_WR)
        assert until_closed(sock).endswith(b"\r\n\r\n")


def test_random_bytes_are_answered_request_by_request(server: Running) -> None:
    assert fuzz_server(server.port, seed=18, rounds=250) > 250


# Inside another server


@contextmanager
def mounted(folder: Path) -> Iterator[tuple[Client, App]]:
    """Mount the application under /mq of another application, served by uvicorn."""
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


def test_the_application_runs_inside_another_asgi_server(tmp_path: Path) -> None:
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


def test_a_dashboard_runs_inside_another_asgi_server(tmp_path: Path) -> None:
    with mounted(tmp_path) as (client, _):
        url = f"ws://{client.host}:{client.port}/mq/ws/dashboard"
        with connect(url) as watcher:
            client.post("/mq/queues", {"name": "q"})
            event: dict[str, Any] = {"event": "worker.connected"}
            while event["event"].startswith("worker."):
                event = json.loads(watcher.recv(timeout=PATIENCE))
            assert (event["event"], event["data"]["queue"]) == ("queue.created", "q")
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
