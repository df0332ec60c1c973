"""Live events of the tree API over a WebSocket."""

from __future__ import annotations

import base64
import gc
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock.server.dashboard import live_events
from penstock.server.http.connection import ServerConnection
from tests.conformance.support import eventually
from tests.integration.conftest import Fresh
from tests.integration.serving import PATIENCE, Client, Running

API = "/api/v1"
HANDSHAKE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
}
PING, CLOSE = b"\x89\x00", b"\x88"
# The close frame: length, code 1008 and reason.
TOO_SLOW = b"\x0a\x03\xf0too slow"


@contextmanager
def watching(server: Running, query: str = "", token: str | None = None, **how: Any) -> Iterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"ws://127.0.0.1:{server.port}/ws/dashboard{query}"
    # Without a limit on its queue, the client keeps reading while it closes.
    how |= {"max_queue": None, "open_timeout": PATIENCE, "close_timeout": PATIENCE}
    with connect(url, additional_headers=headers, **how) as watcher:
        yield watcher


@contextmanager
def slow_client(server: Running) -> Iterator[socket.socket]:
    """Connect a client that reads little at a time and never answers a ping."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(b"GET /ws/dashboard HTTP/1.1\r\n")
        sock.sendall(b"".join(f"{name}: {value}\r\n".encode() for name, value in HANDSHAKE.items()) + b"\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        assert b" 101 " in head
        yield sock


def wait_until_idle(server: Running) -> Running:
    """Wait until the server has recorded its own start, so that no other event follows."""
    with server.client() as client:
        eventually(lambda: client.get("/journal/events?kind=worker").json["events"] != [])
    return server


def until_closed(sock: socket.socket) -> bytes:
    found = b""
    while part := sock.recv(65_536):
        found += part
    return found


def accepts_watchers(server: Running) -> bool:
    try:
        with watching(server):
            return True
    except InvalidStatus:
        return False


def next_events(watcher: ClientConnection, count: int, ns: str) -> list[dict[str, Any]]:
    """Return the next events of this namespace, except depths."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        message = json.loads(watcher.recv(timeout=PATIENCE))
        data = message["data"]
        if message["event"] != "queue.depth" and ns in (data.get("ns"), data.get("queue", "").partition("/")[0]):
            found.append(message)
    return found


def push(client: Client, ns: str, *payloads: Any, **rest: Any) -> list[dict[str, Any]]:
    items = [{"ns": ns, "task": "t", "queue": "q", "payload": payload, **rest} for payload in payloads]
    messages: list[dict[str, Any]] = client.post(f"{API}/push", {"items": items}).json["messages"]
    return messages


def settle(client: Client, ns: str, status: str, **rest: Any) -> None:
    (message,) = client.get(f"{API}/pop/ns/{ns}?worker=me").json["messages"]
    answer = client.post(f"{API}/ack", {"transactionId": message["transactionId"], "status": status, **rest})
    assert answer.status == 200


def test_the_events_of_a_message_are_published_as_they_happen(server: Running, client: Client, name: str) -> None:
    with watching(server) as watcher:
        client.post(f"{API}/configure", {"ns": name, "task": "t", "queue": "q", "options": {"retryDelay": 0}})
        (pushed,) = push(client, name, 1, transactionId=f"{name}-1")
        settle(client, name, "failed", error="no luck")
        settle(client, name, "completed")
        events = next_events(watcher, 6, name)
    assert [event["event"] for event in events] == [
        "queue.created",
        "message.pushed",
        "message.processing",
        "message.failed",
        "message.processing",
        "message.completed",
    ]
    created, *messages = [event["data"] for event in events]
    assert created == {"ns": name, "task": "t", "queue": "q", "timestamp": created["timestamp"]}
    assert {data["transactionId"] for data in messages} == {f"{name}-1"}
    assert {data["id"] for data in messages} == {pushed["id"]}
    assert {data["queue"] for data in messages} == {f"{name}/t/q"}
    assert (messages[1]["workerId"], messages[2]["error"]) == ("me", "no luck")


def test_events_of_other_apis_are_published_too(server: Running, client: Client, name: str) -> None:
    with watching(server) as watcher:
        path = client.queue(f"{name}/t/q")
        client.post(f"{path}/messages", {"payload": 1})
        created, pushed = next_events(watcher, 2, name)
    assert created["event"] == "queue.created"
    assert pushed["data"]["transactionId"] == pushed["data"]["id"]


def test_a_returning_subscriber_resumes_at_its_position(server: Running, client: Client, name: str) -> None:
    with watching(server) as watcher:
        push(client, name, 1)
        _, first = next_events(watcher, 2, name)
    push(client, name, 2)
    push(client, name, 3)
    with watching(server, f"?since={first['offset']}") as watcher:
        second, third = next_events(watcher, 2, name)
    assert first["data"]["id"] < second["data"]["id"] < third["data"]["id"]
    assert first["offset"] < second["offset"] < third["offset"]


def test_a_batch_is_published_as_one_event_per_message(server: Running, client: Client, name: str) -> None:
    with watching(server) as one, watching(server) as two:
        sent = [each["id"] for each in push(client, name, *range(50))]
        for watcher in (one, two):
            _, *pushed = next_events(watcher, 51, name)
            assert [event["data"]["id"] for event in pushed] == sent


def test_the_depth_of_an_active_queue_is_reported(serve: Fresh, name: str) -> None:
    server = serve(metrics_ms=100)
    with watching(server) as watcher, server.client() as client:
        push(client, name, 1, 2, 3)
        while (message := json.loads(watcher.recv(timeout=PATIENCE)))["event"] != "queue.depth":
            pass
    assert message["data"] == {"queue": f"{name}/t/q", "depth": 3, "timestamp": message["data"]["timestamp"]}
    assert "offset" not in message


def test_an_invalid_position_is_refused(server: Running) -> None:
    with pytest.raises(InvalidStatus) as refused, watching(server, f"?since={2**40}"):
        pass
    assert 400 <= refused.value.response.status_code < 500
    assert "code" in json.loads(refused.value.response.body)


def test_a_plain_request_gets_upgrade_required(client: Client) -> None:
    answer = client.get("/ws/dashboard")
    assert (answer.status, answer.json["code"], answer.headers["upgrade"]) == (426, "upgrade_required", "websocket")


@pytest.mark.parametrize("header", ["Sec-WebSocket-Key", "Sec-WebSocket-Version"])
def test_a_malformed_handshake_is_refused(server: Running, header: str) -> None:
    headers = HANDSHAKE | {header: "x"}
    with server.client() as client:
        answer = client.get("/ws/dashboard", **{name.replace("-", "_"): value for name, value in headers.items()})
        assert (answer.status, answer.json["code"]) == (400, "malformed_handshake")


def test_watching_requires_access_to_all_queues(serve: Fresh) -> None:
    server = serve(auth_token="a-token")
    with server.client() as admin:
        admin.queue("mine")
        key = admin.post("/queues/mine/keys").json["key"]
    for token, status in ((None, 401), ("wrong", 401), (key, 403)):
        with pytest.raises(InvalidStatus) as refused, watching(server, token=token):
            pass
        assert refused.value.response.status_code == status
    with watching(server, token="a-token"):
        pass


def offered_protocols(token: str) -> list[Any]:
    """Return the subprotocols that a browser offers, because it cannot send an Authorization header."""
    return ["penstock", "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")]


@pytest.mark.parametrize("token", ["a-token", "tök en/+?"])
def test_a_browser_sends_the_token_as_a_subprotocol(serve: Fresh, token: str) -> None:
    server = serve(auth_token=token)
    with watching(server, subprotocols=offered_protocols(token)) as watcher:
        assert watcher.subprotocol == "penstock"
    for names in (["penstock"], offered_protocols("wrong"), ["penstock", "bearer.!"], ["penstock", "bearer."]):
        with pytest.raises(InvalidStatus) as refused, watching(server, subprotocols=names):
            pass
        assert refused.value.response.status_code == 401


def test_an_offered_token_is_never_echoed(serve: Fresh) -> None:
    server = serve(auth_token="a-token")
    token_alone = offered_protocols("a-token")[1:]
    with watching(server, subprotocols=token_alone) as watcher:
        assert watcher.subprotocol is None
        assert "bearer" not in str(watcher.response)


def test_a_foreign_web_page_cannot_watch_a_server_without_a_token(server: Running) -> None:
    with pytest.raises(InvalidStatus) as refused, watching(server, origin="https://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    with watching(server, origin=f"http://127.0.0.1:{server.port}"):
        pass


def test_the_number_of_watchers_is_limited_and_disconnected_ones_do_not_count(serve: Fresh) -> None:
    server = serve(ws_connections_max=1)
    with watching(server), pytest.raises(InvalidStatus) as refused, watching(server):
        pass
    assert refused.value.response.status_code == 429
    assert "retry-after" in refused.value.response.headers

    eventually(lambda: accepts_watchers(server))


def test_a_client_that_answers_heartbeats_stays_connected(serve: Fresh, name: str) -> None:
    server = wait_until_idle(serve(ws_heartbeat_ms=100))
    with watching(server) as watcher, server.client() as client:
        watcher.ping().wait(PATIENCE)
        with pytest.raises(TimeoutError):
            watcher.recv(timeout=1)
        push(client, name, 1)
        assert [event["event"] for event in next_events(watcher, 2, name)] == ["queue.created", "message.pushed"]


def test_a_client_that_does_not_answer_a_heartbeat_is_dropped(serve: Fresh) -> None:
    with slow_client(wait_until_idle(serve(ws_heartbeat_ms=100))) as sock:
        assert sock.recv(2) == PING
        assert until_closed(sock).replace(PING, b"") == b""


def test_a_slow_watcher_is_closed_with_a_reason(serve: Fresh, name: str) -> None:
    server = serve(ws_slow_ms=50, ws_connections_max=1)
    with slow_client(server) as sock, server.client() as client:
        for _ in range(6):
            push(client, name, *range(5_000))
        eventually(lambda: accepts_watchers(server))
        *_, last = until_closed(sock).split(b'{"event":')
    next_events, _, close_frame = last.partition(CLOSE)
    dropped = json.loads(b'{"event":' + next_events)
    assert (dropped["event"], close_frame) == ("dropped", TOO_SLOW)
    with watching(server, f"?since={dropped['offset']}") as watcher:
        assert json.loads(watcher.recv(timeout=PATIENCE))["offset"] >= dropped["offset"]


def test_pings_to_a_client_that_does_not_read_do_not_accumulate(serve: Fresh) -> None:
    server = wait_until_idle(serve())
    ping = b"\x89\xfd\0\0\0\0" + b"x" * 125
    with slow_client(server) as sock:
        for _ in range(200):
            sock.sendall(ping * 500)
        watched = [
            each for each in gc.get_objects() if type(each) is ServerConnection and each._socket and not each.is_closed
        ]
        assert [each for each in watched if each._transport.get_write_buffer_size() > 2 << 20] == []
        sock.sendall(b"\x89\x84\0\0\0\0last" + b"\x88\x80\0\0\0\0")
        assert b"\x8a\x04last\x88" in until_closed(sock)


def test_a_long_error_of_many_messages_uses_bounded_memory(
    serve: Fresh, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "PAGES_BYTES_KEPT", 8 << 20)
    server = wait_until_idle(serve(canary_ms=0))
    with server.client() as client:
        queue = client.queue(name)
        client.post(f"{queue}/messages", {"messages": [{"payload": 1}] * 4_000})
        for _ in range(20):
            leased = client.post(f"{queue}/poll?batch=200&wait_ms=0").json["messages"]
            items = [{"id": each["id"], "token": each["token"], "error": "x" * 4_000} for each in leased]
            client.post(f"{queue}/nack", {"items": items})
        with watching(server, "?since=0") as watcher:
            failed = 0
            while failed < 4_000:
                failed += json.loads(watcher.recv(timeout=PATIENCE))["event"] == "message.failed"
    [feed] = [route.handler.__self__._feed for route in server.app.routes if route.path == "/ws/dashboard"]
    sizes = [sum(map(len, page.result().frames)) for page in feed._pages.values()]
    assert max(sizes) < 6 << 20
    assert sum(sizes) <= 8 << 20


def test_a_server_that_stops_closes_connections_with_a_reason(serve: Fresh) -> None:
    server = serve()
    with watching(server) as watcher:
        server.loop.call_soon_threadsafe(server.app.stop_waiting)
        with pytest.raises(ConnectionClosed) as closed:
            watcher.recv(timeout=PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
