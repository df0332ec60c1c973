"""Fuzzes the HTTP layer at the byte level, with another implementation, h11, as the oracle.

Every request that our parser accepts must be the same request to h11. Our parser may refuse what h11 accepts only for
a reason listed in `STRICTER`: where h11 is lenient, a proxy in front may be lenient in another way.
"""

from __future__ import annotations

import random
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

import h11

from penstock.server.http.request_parser import END, HEAD_BYTES_MAX, HEADERS_MAX, Head, RequestParser
from penstock.wire.http_errors import HttpError

METHODS = [b"GET", b"POST", b"PUT", b"BREW", b"HEAD", b"OPTIONS"]
TARGETS = [b"/healthz", b"/queues", b"/x?a=%20b", b"http://localhost/healthz?q", b"/queues/q/messages", b"*"]
VERSIONS = [b"HTTP/1.1"] * 12 + [b"HTTP/1.0", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.10", b"RTSP/1.0", b""]
HEADERS = [
    b"Host: localhost",
    b"Host: other",
    b"HOST:",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length: 0x5",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding : chunked",
    b"Connection: close",
    b"Connection: keep-alive, Close",
    b"Connection: upgrade",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"X-Empty:",
    b"X: \x01",
    b"X: caf\xe9",
    b" folded: yes",
    b"no colon",
    b": no name",
]
BODIES = [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n1 \r\n!\r\n0\r\nT: x\r\n\r\n", b"0\r\n\r\n"]
BODIES += [b"05\r\nhello\r\n00\r\n\r\n", b"5\r\nhello!\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"g\r\n", b"-5\r\nhello\r\n"]
PIECES = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b"\0",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b",",
    b"0",
    b"HTTP/1.1",
]
# The reasons for which our parser refuses what h11 accepts.
STRICTER = {
    "a line that does not end with CRLF": re.compile(rb"(?<!\r)\n"),
    "a control character": re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)"),
    "a folded header": re.compile(rb"\r\n[ \t]"),
    "both a length and a transfer coding": re.compile(rb"(?is)content-length.*transfer-encoding|transfer-.*content-le"),
    "a length given more than once": re.compile(rb"(?is)content-length:.*content-length:|content-length:[^\r\n]*,"),
    "a length of more than 18 digits": re.compile(rb"(?i)content-length:[ \t]*[0-9]{19}"),
    "a transfer coding in HTTP/1.0": re.compile(rb"(?is)HTTP/1\.0.*transfer-encoding"),
    "a version that is neither 1.0 nor 1.1": re.compile(rb" HTTP/(?!1\.[01]\r\n)[0-9]\.[0-9]\r\n"),
    "a target that is neither a path nor a URL": re.compile(
        rb"\r\n?[^ ]+ (?!/|\*[ #?]|[A-Za-z][-+.0-9A-Za-z]*://)[^ ]+ HTTP/"
    ),
    "a zero byte in a chunk's extension": re.compile(rb"(?m)^[0-9A-Fa-f]+;[^\r\n]*\0"),
    "a trailer that says where a request goes or ends": re.compile(
        rb"(?i)\r\n0+(?:[ \t;][^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*?(?:host|content-length|transfer-encoding):"
    ),
    "a chunk of more than 15 digits": re.compile(rb"(?m)^[0-9A-Fa-f]{16}"),
}


@dataclass(frozen=True)
class Seen:
    method: str
    target: bytes
    host: bytes
    body: bytes


def stream(chance: random.Random) -> bytes:
    """Return a few requests, most of them valid, with random changes."""
    parts = [_request(chance, number) for number in range(chance.randrange(1, 4))]
    data = b"".join(parts)
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data = data[:at] + chance.choice(PIECES) + data[at:]
            case 1:
                data = data[:at] + data[at + chance.choice((1, 1, 2, 8)) :]
            case 2:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case _:
                data = data[:at]
    return data


def _request(chance: random.Random, number: int) -> bytes:
    if chance.random() < 0.5:
        sound = [b"Host: localhost", b"X-Request-Id: r%d" % number]
        framing, body = chance.choice(
            (
                ([], b""),
                ([b"Content-Length: 5"], b"hello"),
                ([b"Transfer-Encoding: chunked"], chance.choice(BODIES[2:4])),
            )
        )
        line = b"%s %s HTTP/1.1" % (chance.choice(METHODS[:2]), chance.choice(TARGETS[:4]))
        return b"\r\n".join([line, *sound, *framing, b"", body])
    line = b" ".join((chance.choice(METHODS), chance.choice(TARGETS), chance.choice(VERSIONS)))
    headers = [b"Host: localhost"] * (chance.random() < 0.9)
    headers += chance.sample(HEADERS, chance.choice((0, 0, 1, 1, 2, 3)))
    chance.shuffle(headers)
    return b"\r\n".join([line, *headers, b"", chance.choice(BODIES)])


def pieces(data: bytes, chance: random.Random) -> list[bytes]:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 3, 10))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def read_here(parts: list[bytes]) -> list[Seen]:
    """Return the requests that our parser reads completely, until it refuses one or one closes the connection."""
    parser, found = RequestParser(), []
    head: Head | None = None
    body = b""
    for part in parts:
        parser.feed(part)
        while True:
            try:
                event = parser.next()
            except HttpError:
                return found
            if event is None:
                break
            if isinstance(event, Head):
                head, body = event, b""
            elif event is not END:
                body += event
            else:
                assert head is not None
                target = head.path + (b"?" + head.query if head.query else b"")
                found.append(Seen(head.method, target, head.headers.get(b"host", b""), body))
                if not head.keep_alive:
                    return found
    return found


def read_by_h11(data: bytes) -> list[Seen]:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    found: list[Seen] = []
    # Unlike our parser, h11 does not accept empty lines before a request.
    connection.receive_data(data.lstrip(b"\r\n") if data.startswith(b"\r\n") else data)
    connection.receive_data(b"")
    request: h11.Request | None = None
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return found
        if isinstance(event, h11.Request):
            request, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            found.append(_seen(request, body))
            connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return found
            try:
                connection.start_next_cycle()
            except h11.LocalProtocolError:
                return found
            rest = connection.trailing_data[0]
            if rest.startswith(b"\r\n"):
                return found + read_by_h11(rest.lstrip(b"\r\n"))
        else:
            return found


def _seen(request: h11.Request, body: bytes) -> Seen:
    target = request.target.partition(b"#")[0]
    host = next((bytes(value) for name, value in request.headers if name == b"host"), b"")
    if absolute := re.match(rb"[A-Za-z][-+.0-9A-Za-z]*://([^/?]*)", target):
        host, target = absolute[1], target[absolute.end() :]
    path, _, query = target.partition(b"?")
    target = (path or b"/") + (b"?" + query if query else b"")
    return Seen(request.method.decode(), target, host, bytes(body))


def why_stricter(data: bytes) -> list[str]:
    found = [reason for reason, pattern in STRICTER.items() if pattern.search(b"\r\n" + data)]
    if len(data) > HEAD_BYTES_MAX or data.count(b"\n") > HEADERS_MAX:
        found.append("a limit")
    return found


def fuzz_parser(seed: int, rounds: int) -> int:
    """Compare our reading of random streams with that of h11; return the number of requests."""
    chance, requests = random.Random(seed), 0
    for number in range(rounds):
        data = stream(chance)
        here, there = read_here(pieces(data, chance)), read_by_h11(data)
        assert here == there[: len(here)], (seed, number, data, here, there)
        assert len(here) == len(there) or why_stricter(data), (seed, number, data, here, there)
        requests += len(here)
    return requests


def fuzz_server(port: int, seed: int, rounds: int) -> int:
    """Send random streams to a server, which must answer each complete request and may then refuse one more."""
    chance, answers = random.Random(seed), 0
    for number in range(rounds):
        data = stream(chance)
        parts = pieces(data, chance)
        wanted = read_here([data])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in parts:
                try:
                    sock.sendall(part)
                except ConnectionError:
                    break  # The server refused the request before reading all of it.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            statuses = _answers(sock, [*_methods(data), "GET"][: len(wanted) + 1])
        # The server may refuse one more request, or answer it from its head before its body turns out to be invalid.
        assert len(wanted) <= len(statuses) <= len(wanted) + 1, (seed, number, data, wanted, statuses)
        answers += len(statuses)
    return answers


def _methods(data: bytes) -> list[str]:
    """Return the methods of all requests with a valid head: even the refusal of a HEAD request has no body."""
    parser, found = RequestParser(), []
    parser.feed(data)
    with suppress(HttpError):
        while (event := parser.next()) is not None:
            if isinstance(event, Head):
                found.append(event.method)
    return found


def _answers(sock: socket.socket, methods: list[str]) -> list[int]:
    """Read the responses to requests with these methods through h11, and return their status codes."""
    statuses: list[int] = []
    rest, is_over = b"", False
    for method in methods:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        if rest:
            client.receive_data(rest)
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                part = b"" if is_over else sock.recv(1 << 16)
                is_over = is_over or not part
                if is_over and not client.trailing_data[0] and client.their_state is h11.SEND_RESPONSE:
                    return statuses
                client.receive_data(part)
            elif isinstance(event, h11.Response):
                statuses.append(event.status_code)
            elif isinstance(event, h11.EndOfMessage):
                rest = client.trailing_data[0]
                break
    return statuses
