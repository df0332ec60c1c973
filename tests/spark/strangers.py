"""What Spark's JVM answers to a local user without the secret."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

NOBODY = 65534
ANSWER_SECONDS = 10
DESERIALISED = b"ClassNotFoundException"
"""In the answer of a Java that has begun to make an object of what it was sent."""
REFUSED = b"Expected SaslMessage"
_REQUEST, _REQUEST_HEAD_BYTES = 3, 21


def answers_to_a_stranger(java_pid: int) -> dict[int, bytes]:
    """Send an object to each port that a Java listens on, as an unprivileged user, and return the answers."""
    connections = psutil.Process(java_pid).net_connections("inet")
    ports = {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    with unprivileged():
        return {port: _answer(port) for port in ports}


@contextmanager
def unprivileged() -> Iterator[None]:
    if os.geteuid() != 0:  # It is already.
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def _answer(port: int) -> bytes:
    """Send a request of Spark's RPC whose content is an object of a class that does not exist."""
    content = b"\xac\xed\x00\x05sr" + _text("no.such.Class") + bytes(8) + b"\x02\x00\x00xp"
    receiver = b"\x01" + _text("127.0.0.1") + struct.pack(">i", port) + _text("endpoint-verifier")
    body = b"\x00" + receiver + content
    frame = struct.pack(">qbqi", _REQUEST_HEAD_BYTES + len(body), _REQUEST, 1, len(body)) + body
    answer = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        connection.sendall(frame)
        while DESERIALISED not in answer and REFUSED not in answer and (more := connection.recv(1 << 16)):
            answer += more
    return answer


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()
