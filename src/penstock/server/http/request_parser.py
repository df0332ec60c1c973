"""Incremental HTTP/1.1 request parser. It does not read past the end of a request until the next one is wanted.

All patterns are possessive and every byte is searched once, so parsing is linear in the size of a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Literal

from penstock.wire.http_errors import HttpError

HEAD_BYTES_MAX = 64 << 10
HEADERS_MAX = 100
CHUNK_LINE_BYTES_MAX = 4 << 10

TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]"
FIELDS = rb"(?:%s++:[^\0-\x08\x0a-\x1f\x7f]*+\r\n)*+" % TOKEN
BLANK_LINES = re.compile(rb"(?:\r\n)++")
BEGINNING = re.compile(rb"%s|\r\Z" % TOKEN)
REQUEST_LINE = re.compile(rb"(%s++) ([!-~]++) HTTP/([0-9]\.[0-9])\r\n" % TOKEN)
HEAD = re.compile(rb"(%s++) ([!-~]++) HTTP/1\.([01])\r\n(%s)\r\n" % (TOKEN, FIELDS))
FIELD = re.compile(rb"([^:]++):[ \t]*+([^\r\n]*+)\r\n")
TRAILERS = re.compile(rb"%s\r\n" % FIELDS)
LENGTH = re.compile(rb"[0-9]{1,18}+")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15}+)(?:;[^\0-\x08\x0a-\x1f\x7f]*+)?+[ \t]*+")
SCHEME_AND_HOST = re.compile(rb"[A-Za-z][-+.0-9A-Za-z]*+://([^/?#]*+)")
# If repeated, a proxy could read a different request than this server (request smuggling).
ONCE = frozenset((b"host", b"content-length", b"transfer-encoding"))


class End(Enum):
    END = 0


# Marks the end of a request.
END = End.END


class Head:
    __slots__ = ("expects_continue", "headers", "is_http_1_1", "keep_alive", "method", "path", "query")

    def __init__(self, method: bytes, target: bytes, minor: bytes, headers: dict[bytes, bytes]) -> None:
        self.method = method.decode("ascii")
        # By lower-case name; a repeated header keeps its first value.
        self.headers = headers
        self.path, self.query = self._split(target)
        self.is_http_1_1 = minor == b"1"
        self.keep_alive = self.is_http_1_1
        if (connection := headers.get(b"connection")) is not None and self.is_http_1_1:
            self.keep_alive = b"close" not in (word.strip() for word in connection.lower().split(b","))
        self.expects_continue = self.is_http_1_1 and headers.get(b"expect", b"").lower() == b"100-continue"

    def _split(self, target: bytes) -> tuple[bytes, bytes]:
        target = target.partition(b"#")[0]
        if not target.startswith(b"/") and target != b"*":
            absolute = SCHEME_AND_HOST.match(target)
            if absolute is None:
                raise malformed(f"request target {target[:100].decode('ascii')!r} is neither a path nor a URL")
            self.headers[b"host"] = absolute[1]
            target = target[absolute.end() :]
        path, _, query = target.partition(b"?")
        return path or b"/", query


class RequestParser:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._has_line = False
        self._left = 0
        self._read: Callable[[], Head | bytes | Literal[End.END] | None] = self._read_head

    @property
    def unread(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Head | bytes | Literal[End.END] | None:
        """Return the next head, part of a body, or END; None if more bytes are needed. Raise HttpError."""
        return self._read()

    def take_rest(self) -> bytes:
        """Return the bytes after a request that switches to another protocol."""
        return self._take(len(self._buffer))

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._searched = 0
        return taken

    def _find(self, mark: bytes) -> int:
        found = self._buffer.find(mark, max(0, self._searched - len(mark) + 1))
        self._searched = len(self._buffer)
        return found

    # Heads

    def _read_head(self) -> Head | None:
        buffer = self._buffer
        if (blank := BLANK_LINES.match(buffer)) is not None:
            self._take(blank.end())  # Some clients send a line end after a body.
        end = self._find(b"\r\n\r\n")
        if end > HEAD_BYTES_MAX or (end < 0 and len(buffer) > HEAD_BYTES_MAX):
            raise HttpError(
                431, "head_too_large", "the request head is too large", hint=f"at most {HEAD_BYTES_MAX} bytes"
            )
        if end < 0:
            self._check_beginning()
            return None
        self._has_line = False
        found = HEAD.fullmatch(text := self._take(end + 4))
        if found is None:
            raise _head_error(text)
        method, target, minor, fields = found.groups()
        headers = _headers(fields)
        if minor == b"1" and b"host" not in headers:
            raise malformed("missing Host header; HTTP/1.1 requires one")
        head = Head(method, target, minor, headers)
        self._begin_body(head)
        return head

    def _check_beginning(self) -> None:
        """Reject early what cannot become a request."""
        buffer = self._buffer
        if buffer and BEGINNING.match(buffer) is None:
            raise malformed("this is not an HTTP/1.1 request")
        if not self._has_line and b"\n" in buffer:
            if REQUEST_LINE.match(buffer) is None:
                raise malformed("this is not an HTTP/1.1 request")
            self._has_line = True

    def _begin_body(self, head: Head) -> None:
        headers = head.headers
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        self._left = 0
        self._read = self._read_body
        if coding is not None:
            if length is not None:
                raise malformed("send Content-Length or Transfer-Encoding, not both")
            if not head.is_http_1_1:
                raise malformed("HTTP/1.0 does not allow Transfer-Encoding")
            if coding.lower() != b"chunked":
                text = coding[:100].decode("latin-1")
                raise HttpError(
                    501,
                    "unknown_transfer_coding",
                    f"unsupported transfer coding {text!r}",
                    hint="send the body plain or chunked",
                )
            self._read = self._read_chunk_line
        elif length is not None:
            if LENGTH.fullmatch(length) is None:
                raise malformed(f"invalid Content-Length {length[:100].decode('latin-1')!r}")
            self._left = int(length)

    # Bodies

    def _read_body(self) -> bytes | Literal[End.END] | None:
        if not self._left:
            self._read = self._read_head
            return END
        return self._read_part()

    def _read_part(self) -> bytes | None:
        part = self._take(self._left)
        self._left -= len(part)
        return part or None

    def _read_chunk_line(self) -> bytes | Literal[End.END] | None:
        end = self._find(b"\r\n")
        if end > CHUNK_LINE_BYTES_MAX or (end < 0 and len(self._buffer) > CHUNK_LINE_BYTES_MAX):
            raise malformed("the chunk header is too long")
        if end < 0:
            return None
        found = CHUNK_LINE.fullmatch(self._take(end + 2)[:-2])
        if found is None:
            raise malformed("the chunk header does not begin with a size")
        self._left = int(found[1], 16)
        self._read = self._read_chunk if self._left else self._read_trailers
        return self._read()

    def _read_chunk(self) -> bytes | Literal[End.END] | None:
        if self._left:
            return self._read_part()
        if len(self._buffer) < 2:
            return None
        if self._take(2) != b"\r\n":
            raise malformed("a chunk is longer than its size")
        self._read = self._read_chunk_line
        return self._read()

    def _read_trailers(self) -> Literal[End.END] | None:
        """Skip the trailers; no call uses any."""
        if self._buffer.startswith(b"\r\n"):
            end = 0
        elif (end := self._find(b"\r\n\r\n") + 2) < 2:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise malformed("the trailers are too large")
            return None
        trailers = self._take(end + 2)
        if TRAILERS.fullmatch(trailers) is None:
            raise malformed("malformed trailers")
        if not ONCE.isdisjoint(_headers(trailers[:-2])):
            raise malformed("Host, Content-Length and Transfer-Encoding are not allowed as trailers")
        self._read = self._read_head
        return END


def malformed(reason: str) -> HttpError:
    return HttpError(400, "malformed_request", reason)


def _headers(fields: bytes) -> dict[bytes, bytes]:
    pairs = FIELD.findall(fields)
    if len(pairs) > HEADERS_MAX:
        raise HttpError(431, "head_too_large", "the request has too many headers", hint=f"at most {HEADERS_MAX}")
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        name = name.lower()
        if name not in headers:
            headers[name] = value.rstrip(b" \t")
        elif name in ONCE:
            raise malformed(f"repeated header {name.decode('ascii')!r}")
        elif name == b"connection":
            headers[name] += b"," + value
    return headers


def _head_error(head: bytes) -> HttpError:
    line = REQUEST_LINE.match(head)
    if line is None:
        return malformed("this is not an HTTP/1.1 request")
    version = line[3].decode("ascii")
    if version not in ("1.0", "1.1"):
        return HttpError(505, "unknown_http_version", f"unsupported version HTTP/{version}", hint="use HTTP/1.1")
    return malformed("malformed header")
