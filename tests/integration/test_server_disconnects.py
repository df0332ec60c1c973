"""Clients that disconnect lose no message. The long run is tests/robustness/disconnects.py."""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Fresh
from tests.integration.serving import Client, Running, process
from tests.robustness.disconnects import measure, request

RESET = struct.pack("ii", 1, 0)
SOON = 20.0


def wait_until(condition: object, what: str = "") -> None:
    deadline = time.monotonic() + SOON
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def hang_up(sock: socket.socket, how: str) -> None:
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


@pytest.mark.timeout(120)
def test_hanging_up_at_random_moments_loses_nothing(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        counts = measure(server, 300, 20)
    assert counts.lost == 0
    assert counts.polls == counts.pushed == 300


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_waiting_poll_of_a_disconnected_client_ends_and_leases_nothing(
    server: Running, client: Client, queue: str, how: str
) -> None:
    open_before = server.app.broker.polls
    sock = server.connect()
    sock.sendall(request(f"{queue}/poll?wait_ms=60000"))
    wait_until(lambda: server.app.broker.polls == open_before + 1)
    hang_up(sock, how)
    wait_until(lambda: server.app.broker.polls == open_before)
    client.post(f"{queue}/messages", {"payload": 1})
    assert client.get(f"{queue}/stats").json["totals"]["leased"] == 0


def test_a_half_closed_connection_counts_as_disconnected(server: Running, client: Client, queue: str) -> None:
    sock = server.connect()
    sock.sendall(request(f"{queue}/poll?wait_ms=60000"))
    wait_until(lambda: server.app.broker.polls == 1)
    sock.shutdown(socket.SHUT_WR)
    wait_until(lambda: server.app.broker.polls == 0)
    sock.close()


def test_a_pipelined_poll_of_a_disconnected_client_ends_too(server: Running, client: Client, queue: str) -> None:
    sock = server.connect()
    sock.sendall(request(f"{queue}/poll?wait_ms=60000") + request(f"{queue}/poll?wait_ms=60000"))
    wait_until(lambda: server.app.broker.polls == 1)
    sock.close()
    wait_until(lambda: server.app.broker.polls == 0)
    client.post(f"{queue}/messages", {"payload": 1})
    assert client.get(f"{queue}/stats").json["totals"]["leased"] == 0


def test_the_messages_of_an_incomplete_response_are_released(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, visibility_ms=3_600_000)
    for _ in range(30):
        client.post(f"{queue}/messages", {"payload": "x" * 500_000})
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(request(f"{queue}/poll?wait_ms=0&batch=30"))
    wait_until(lambda: client.get(f"{queue}/stats").json["leased"] == 30)
    sock.close()
    wait_until(lambda: client.get(f"{queue}/stats").json["ready"] == 30, "given back")
    assert client.post(f"{queue}/poll?wait_ms=0").json["messages"][0]["attempts"] == 1


def test_a_released_message_goes_to_another_waiting_poll(server: Running, client: Client, queue: str) -> None:
    """The first poll is woken but disconnects at that moment, so the second must get the message at once."""
    for _ in range(20):
        first = server.connect()
        first.sendall(request(f"{queue}/poll?wait_ms=60000&visibility_ms=2000"))
        wait_until(lambda: server.app.broker.polls == 1)
        with server.client() as second:
            second.connection.request("POST", f"{queue}/poll?wait_ms=60000")
            wait_until(lambda: server.app.broker.polls == 2)
            with server.connect() as pusher:
                body = json.dumps({"payload": 1}).encode()
                pusher.sendall(request(f"{queue}/messages", body))
                first.close()
                pusher.recv(65_536)
            response = second.connection.getresponse()
            body = response.read()
        messages = json.loads(body)["messages"]
        assert len(messages) == 1
        assert client.post(f"{queue}/ack", {"id": messages[0]["id"]}).status == 200


def test_no_message_is_taken_for_a_client_that_disconnected_while_waiting(
    server: Running, client: Client, name: str
) -> None:
    client.queue(name, archive_ms=None)
    for how in ("close", "reset") * 5:
        sock = server.connect()
        path = f"/v1/messages?topic={name}&wait=60"
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        wait_until(lambda: server.app.broker.polls == 1)
        hang_up(sock, how)
        client.post("/v1/messages", {"body": "x", "topic": name})
        wait_until(lambda: server.app.broker.polls == 0)
        assert len(client.get(f"/v1/messages?topic={name}&limit=100").json) == 1


def test_acks_of_a_disconnected_client_still_count(server: Running, client: Client, queue: str) -> None:
    client.post(f"{queue}/messages", {"payload": 1})
    [message] = client.post(f"{queue}/poll?wait_ms=0").json["messages"]
    body = json.dumps({"acks": [{"id": message["id"], "token": message["token"]}]}).encode()
    with server.connect() as sock:
        sock.sendall(request(f"{queue}/poll?wait_ms=60000", body))
        wait_until(lambda: server.app.broker.polls == 1)
    wait_until(lambda: client.get(f"{queue}/stats").json["totals"]["acked"] == 1)


def test_disconnected_clients_are_counted(serve: Fresh) -> None:
    server = serve()
    with server.client() as client:
        queue = client.queue("q")
        with server.connect() as sock:
            sock.sendall(request(f"{queue}/poll?wait_ms=60000"))
            wait_until(lambda: b"penstock_long_polls_open 1.0" in client.get("/metrics").body)
        wait_until(lambda: b"penstock_long_polls_open 0.0" in client.get("/metrics").body)
        assert b'route="/queues/{queue}/poll",status="499"} 1.0' in client.get("/metrics").body
