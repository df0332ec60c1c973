"""Every request: strict JSON, limits, request ids, methods, paths, mounting and backpressure."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.server.app import REFUSAL_SECONDS, App
from penstock.store.sqlite import SqliteStore
from tests.integration.conftest import Fresh
from tests.integration.serving import Answer, Client, Running, process

# Strict JSON


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"", 400, "malformed_json", None),
        (b"{", 400, "malformed_json", None),
        (b'{"payload": 1} x', 400, "malformed_json", None),
        (b'{"payload": NaN}', 400, "malformed_json", None),
        (b'{"payload": Infinity}', 400, "malformed_json", None),
        (b'{"payload": -Infinity}', 400, "malformed_json", None),
        (b'{"payload": 1e999}', 400, "malformed_json", None),
        (b'{"payload": 01}', 400, "malformed_json", None),
        (b'{"payload": "\xff"}', 400, "malformed_json", None),
        (b'{"payload": "\xed\xa0\x80"}', 400, "malformed_json", None),
        (b'{"payload": "\\ud800"}', 400, "malformed_json", None),
        (b'{"payload": "a\nb"}', 400, "malformed_json", None),
        (b'\xef\xbb\xbf{"payload": 1}', 400, "malformed_json", None),
        (b'{"payload": ' + b"[" * 64 + b"]" * 64 + b"}", 400, "malformed_json", None),
        (b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "malformed_json", None),
        (b'{"payload": 1, "payload": 2}', 400, "repeated_field", "payload"),
        (b'{"payload": {"a": [{"b": 1, "b": 2}]}}', 400, "repeated_field", "b"),
        (b'{"payload":{"a":1,"a":1e5}}', 400, "repeated_field", "a"),
        (b'{"payload": {"\\u0061": 1, "a": 2}}', 400, "repeated_field", "a"),
        (b"[1]", 400, "wrong_type", None),
        (b'"x"', 400, "wrong_type", None),
        (b'{"payload": 1, "priority": "high"}', 400, "wrong_type", "priority"),
        (b'{"payload": 1, "priority": 1.5}', 400, "wrong_type", "priority"),
        (b'{"payload": 1, "priority": true}', 400, "wrong_type", "priority"),
        (b'{"payload": 1, "headers": {"a": 1}}', 400, "wrong_type", "headers[...]"),
        (b'{"payload": 1, "priority": 2147483648}', 422, "invalid_value", "priority"),
        (b'{"payload": 1, "delay_ms": -1}', 422, "invalid_value", "delay_ms"),
        (b'{"payload": 1, "delay_ms": 99999999999999999999}', 422, "invalid_value", "delay_ms"),
        (b'{"payload": 1, "ttl_ms": 0}', 422, "invalid_value", "ttl_ms"),
        (b'{"payload": 1, "nonsense": 1}', 422, "invalid_value", "nonsense"),
        (b'{"payload": 1, "idempotency_key": ""}', 422, "invalid_value", "idempotency_key"),
        (b'{"payload": 1, "encoding": "rot13"}', 422, "invalid_value", "encoding"),
        (b"{}", 422, "invalid_value", "payload"),
        (b'{"messages": []}', 422, "invalid_value", "messages"),
        (b'{"messages": [{"payload": 1}], "payload": 1}', 422, "invalid_value", "messages"),
        (b'{"messages": [{"payload": 1}, {"priority": 1}]}', 422, "invalid_value", "messages[...].payload"),
        (b'{"messages": [{"payload": 1, "x": 1}]}', 422, "invalid_value", "messages[...].x"),
    ],
)
def test_json_is_strict(client: Client, queue: str, body: bytes, status: int, code: str, field: str | None) -> None:
    answer = client.post(f"{queue}/messages", body)
    assert (answer.status, answer.json["code"]) == (status, code), answer
    assert generalised(answer.json.get("field")) == generalised(field), answer
    assert isinstance(answer.json["error"], str)
    assert client.get(f"{queue}/stats").json["ready"] == 0


def generalised(field: str | None) -> str | None:
    return None if field is None else re.sub(r"\[[^]]*\]", "[]", field)


def test_json_can_be_nested_sixty_four_levels_deep(client: Client, queue: str) -> None:
    body = b'{"payload": ' + b"[" * 63 + b'"[[[[[{{{\\"[["' + b"]" * 63 + b"}"
    assert client.post(f"{queue}/messages", body).status == 201


def test_too_many_arrays_are_refused_before_they_are_built(client: Client, queue: str) -> None:
    answer = client.post(f"{queue}/messages", b'{"payload": [' + b"[]," * 2_000_000 + b"1]}")
    assert (answer.status, answer.json["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("batch=0", 422),
        ("batch=x", 422),
        ("batch=1&batch=2", 422),
        ("nonsense=1", 422),
        ("batch", 400),
        ("%ff=1", 400),
        ("worker=%00%01", 200),
        ("&".join(f"a{number}=1" for number in range(40)), 400),
    ],
)
def test_queries_are_strict(client: Client, queue: str, query: str, status: int) -> None:
    assert client.post(f"{queue}/poll?wait_ms=0&{query}").status == status


# Limits on bodies


def test_a_body_declared_too_large_is_refused_unread(server: Running, queue: str) -> None:
    with server.connect() as sock:
        sock.sendall(head(f"{queue}/messages", "content-length: 1073741824"))
        assert b"HTTP/1.1 413" in sock.recv(4_096)


def test_a_chunked_body_that_is_too_large_is_cut_off(server: Running, client: Client, queue: str) -> None:
    sent = 0
    with server.connect() as sock:
        sock.sendall(head(f"{queue}/messages", "transfer-encoding: chunked"))
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(1_024):
                sock.sendall(chunk)
                sent += 1
        except OSError:
            pass
    assert sent < 64
    assert client.get("/healthz").status == 200


def test_the_limits_are_configurable(serve: Fresh) -> None:
    with serve(payload_bytes=100, request_bytes=1_000).client() as client:
        queue = client.queue("q")
        assert client.post(f"{queue}/messages", {"payload": "x" * 90}).status == 201
        assert client.post(f"{queue}/messages", {"payload": "x" * 200}).json["code"] == "payload_too_large"
        assert client.post(f"{queue}/messages", {"payload": "x" * 2_000}).json["code"] == "body_too_large"
        lines = b'{"payload": "xxxxxxxxxxxxxxxxxxxxxx"}\n' * 1_000
        assert client.post(f"{queue}/messages", lines, content_type="application/x-ndjson").status == 201


def test_a_connection_can_be_reused_after_a_refused_short_body(client: Client, queue: str) -> None:
    for _ in range(3):
        assert client.post(f"{queue}/messages", b"x" * 5_000, content_type="text/plain").status == 415
        assert client.get(queue).status == 200


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


# Paths and methods


def test_an_unsupported_method_is_405_with_allow(client: Client) -> None:
    for method, path, allow in (
        ("PUT", "/queues", "GET, HEAD, OPTIONS, POST"),
        ("GET", "/queues/q/poll", "OPTIONS, POST"),
        ("DELETE", "/v1/messages", "GET, OPTIONS, POST"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
    ):
        answer = client.ask(method, path)
        assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
        assert answer.headers["Allow"] == allow


@pytest.mark.parametrize("path", ["/nothing", "/queues/", "/queues//stats", "/queues/q/nothing", "//queues", "/v1"])
def test_an_unknown_path_is_404(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status, answer.json["code"]) == (404, "no_such_path")


def test_a_path_that_is_not_utf_8_is_400(client: Client) -> None:
    assert client.get("/queues/%ff").json["code"] == "malformed_path"
    assert client.get("/queues/%00").status == 422


def test_options_and_head_are_supported(client: Client, queue: str) -> None:
    options = client.ask("OPTIONS", f"{queue}/poll")
    assert (options.status, options.headers["Allow"]) == (204, "OPTIONS, POST")
    shown = client.ask("HEAD", queue)
    assert (shown.status, shown.body) == (200, b"")
    assert int(shown.headers["Content-Length"]) == len(client.get(queue).body)
    assert client.ask("HEAD", f"{queue}/export").status == 200
    assert client.ask("HEAD", f"{queue}/events").status == 200
    assert client.ask("OPTIONS", "/nothing").status == 404


# Request ids and traces


def test_a_request_id_is_kept_or_generated(client: Client) -> None:
    assert client.get("/healthz", X_Request_Id="abc-1").headers["X-Request-Id"] == "abc-1"
    made = [client.get("/healthz").headers["X-Request-Id"] for _ in range(2)]
    assert len(set(made)) == 2
    for bad in ("a b", "x" * 200, "é"):
        assert client.get("/healthz", X_Request_Id=bad).headers["X-Request-Id"] != bad
    assert client.get("/nothing", X_Request_Id="abc-2").headers["X-Request-Id"] == "abc-2"


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_context_is_kept_with_the_message(client: Client, queue: str) -> None:
    client.post(f"{queue}/messages", {"payload": 1}, traceparent=TRACE)
    client.post(f"{queue}/messages", {"messages": [{"payload": 2}]}, traceparent=TRACE)
    client.post(f"{queue}/messages", {"payload": 3}, traceparent="x" * 20_000)
    messages = client.post(f"{queue}/poll?wait_ms=0&batch=9").json["messages"]
    assert [message.get("headers") for message in messages] == [{"traceparent": TRACE}] * 2 + [None]
    client.post("/v1/messages", {"body": "x", "topic": "traced"}, traceparent=TRACE)
    [text] = client.get("/queues/traced/peek").json["messages"]
    assert text["headers"] == {"traceparent": TRACE}


# OpenAPI document


def test_the_openapi_document_is_valid_3_1(client: Client) -> None:
    document = client.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    calls = [call for path in document["paths"].values() for call in path.values()]
    assert len({call["operationId"] for call in calls}) == len(calls) >= 35
    for text in re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', json.dumps(document, separators=(",", ":"))):
        assert text in document["components"]["schemas"]
    docs = client.get("/docs")
    assert docs.headers["Content-Type"] == "text/html; charset=utf-8"
    for path in document["paths"]:
        assert path in docs.body.decode()


# Mounting


def test_the_application_can_be_mounted_under_a_prefix(tmp_path: Path) -> None:
    """Starlette's Mount leaves the path whole and puts the parent's part of it into root_path."""

    async def scenario() -> None:
        broker = Broker(SqliteStore(tmp_path / "queue.db"))
        app = App(broker, Settings(access_log=False, canary_ms=0))
        app.start()

        async def parent(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await app(dict(scope, root_path="/mq"), receive, send)

        assert (await ask(parent, "POST", "/mq/queues", b'{"name":"ns/a/b"}')).status == 201
        assert (await ask(parent, "GET", "/mq/queues/ns%2Fa%2Fb")).json["name"] == "ns/a/b"
        assert (await ask(parent, "POST", "/mq/queues/ns%2Fa%2Fb/messages", b'{"payload":1}')).status == 201
        polled = await ask(parent, "POST", "/mq/queues/ns%2Fa%2Fb/poll", query=b"wait_ms=1000")
        assert len(polled.json["messages"]) == 1
        assert (await ask(app, "GET", "/queues")).status == 200
        assert (await ask(parent, "GET", "/mqqueues")).status == 404
        await app.stop()
        await broker.close()

    asyncio.run(scenario())


def test_the_lifespan_starts_and_stops_the_application(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker(SqliteStore(tmp_path / "queue.db"))
        app = App(broker, Settings(access_log=False, canary_ms=0, sweep_ms=10))
        events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent: list[str] = []

        async def receive() -> Any:
            await asyncio.sleep(0.05)
            return next(events)

        async def send(event: Any) -> None:
            sent.append(event["type"])

        await app({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        await broker.close()

    asyncio.run(scenario())


async def ask(
    app: Any,
    method: str,
    path: str,
    body: bytes = b"",
    query: bytes = b"",
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Answer:
    """Call an ASGI application as another ASGI server would."""
    sent: list[dict[str, Any]] = []
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": method,
        "path": path.replace("%2F", "/"),
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(b"host", b"localhost"), *(headers or [])],
    }
    await app(scope, receive, send)
    return Answer(sent[0]["status"], {}, b"".join(event.get("body", b"") for event in sent[1:]))  # type: ignore[arg-type]


# Backpressure


@pytest.fixture
def held(tmp_path: Path, serve: Fresh) -> Iterator[tuple[Running, sqlite3.Connection]]:
    """A server whose store is locked by another process."""
    server = serve(busy_ms=300, commit_queue_max=3)
    with server.client() as client:
        client.queue("q")
    with closing(sqlite3.connect(server.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield server, other


def test_a_locked_store_is_503_with_retry_after(held: tuple[Running, sqlite3.Connection]) -> None:
    server, other = held
    with server.client() as client:
        answer = client.post("/queues/q/messages", {"payload": 1})
        assert (answer.status, answer.json["code"]) == (503, "store_busy")
        assert int(answer.headers["Retry-After"]) >= 1
        assert client.get("/queues").status == 200
        other.execute("ROLLBACK")
        assert client.post("/queues/q/messages", {"payload": 1}).status == 201


def test_a_full_commit_queue_is_429_with_retry_after(held: tuple[Running, sqlite3.Connection]) -> None:
    server, _ = held
    answers: list[Answer] = []

    def push() -> None:
        with server.client() as client:
            answers.append(client.post("/queues/q/messages", {"payload": 1}))

    threads = [threading.Thread(target=push) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status for answer in answers} == {429, 503}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers)


def test_a_large_write_ahead_log_is_429_until_it_shrinks(serve: Fresh) -> None:
    server = serve(wal_bytes_max=200_000, sweep_ms=50)
    with server.client() as client, closing(sqlite3.connect(server.path, isolation_level=None)) as reader:
        queue = client.queue("q")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM penstock_message").fetchone()
        deadline = time.monotonic() + 30
        while (answer := client.post(f"{queue}/messages", {"payload": "x" * 50_000})).status == 201:
            assert time.monotonic() < deadline
        assert (answer.status, answer.json["code"]) == (429, "try_later")
        assert int(answer.headers["Retry-After"]) >= 1
        ready = client.get("/readyz")
        assert (ready.status, ready.json["ready"]) == (503, False)
        assert client.post(f"{queue}/transact", {"push": [{"payload": 1}]}).status == 429
        assert client.post(f"{queue}/poll?wait_ms=0").status == 200
        begun = time.monotonic()
        assert client.post(f"{queue}/messages", {"payload": 1}).status == 429
        assert time.monotonic() - begun >= REFUSAL_SECONDS, "a client that retries at once must not starve others"
        reader.execute("ROLLBACK")
        while client.post(f"{queue}/messages", {"payload": 1}).status == 429:
            assert time.monotonic() < deadline
        assert client.get("/readyz").json["ready"] is True


# Access log


def test_each_request_is_one_line_in_the_access_log(tmp_path: Path) -> None:
    with process(tmp_path, "--data", str(tmp_path / "data")) as server, server.client() as client:
        client.queue("q")
        client.post("/queues/q/messages", {"messages": [{"payload": 1}, {"payload": 2}]}, X_Request_Id="mine")
        client.get("/nothing")
        assert server.terminate() == 0
        lines = [line for line in server.lines() if "route" in line]
    assert [line["route"] for line in lines] == ["/queues", "/queues/{queue}/messages", "unmatched"]
    assert [line["status"] for line in lines] == [201, 201, 404]
    line = lines[1]
    assert (line["request_id"], line["method"], line["rows"], line["who"]) == ("mine", "POST", 2, "admin")
    assert 0 < line["ms"] < 60_000
