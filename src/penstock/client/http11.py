"""The subset of HTTP/1.1 that the client needs, without sockets: one request, one response, keep-alive.

There are no redirects, proxies or compression. `connection_async` says why this is not a library.
"""

from __future__ import annotations

from typing import NamedTuple

HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 1 << 30


class BadResponse(Exception):
    """The response is not valid HTTP/1.1."""


class HttpResponse(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    """Headers by lower-case name; the last one wins."""
    body: bytes


def encode_request(
    method: str, target: str, headers: bytes, body: bytes | None, content_type: bytes = b"application/json"
) -> bytes:
    if body is None:
        return b"%s %s HTTP/1.1\r\n%s\r\n" % (method.encode(), target.encode("ascii"), headers)
    return b"%s %s HTTP/1.1\r\n%scontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        method.encode(),
        target.encode("ascii"),
        headers,
        content_type,
        len(body),
        body,
    )


class ResponseParser:
    """Parses responses incrementally: feed it bytes until it returns a response, then it is ready for the next.

    With `in_parts`, the caller takes each part as it arrives, so that a body of any length needs little memory.
    """

    def __init__(self, *, in_parts: bool = False) -> None:
        self.keep_alive = True
        self._in_parts = in_parts
        self._buffer = bytearray()
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._length: int | None = None
        self._chunks: bytearray | None = None

    @property
    def begun(self) -> bool:
        """True if part of a response has arrived."""
        return bool(self._buffer or self._status)

    def feed(self, data: bytes) -> HttpResponse | None:
        self._buffer += data
        if not self._status and not self._read_head():
            return None
        return self._read_body()

    def end(self) -> HttpResponse | None:
        """Handle the end of the connection, which ends a body without a length."""
        if self._status and self._length is None and self._chunks is None:
            self.keep_alive = False
            return self._finish(bytes(self._buffer))
        return None

    def take_part(self) -> HttpResponse | None:
        """Return the part of the body that has arrived, and forget it."""
        # Outside of chunks, the buffer holds nothing but the body once the head is read.
        arrived = self._buffer if self._chunks is None else self._chunks
        if not self._status or not arrived:
            return None
        part = HttpResponse(self._status, self._headers, bytes(arrived))
        arrived.clear()
        if self._length is not None:
            self._length -= len(part.body)
        return part

    def _read_head(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end > HEAD_BYTES_MAX or (end < 0 and len(self._buffer) > HEAD_BYTES_MAX):
                raise BadResponse("the response headers are too long")
            if end < 0:
                return False
            lines = bytes(self._buffer[:end]).split(b"\r\n")
            del self._buffer[: end + 4]
            status = self._parse_head(lines)
            if status >= 200:
                self._status = status
                return True

    def _parse_head(self, lines: list[bytes]) -> int:
        version, _, rest = lines[0].partition(b" ")
        code = rest[:3]
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit():
            raise BadResponse(f"not an HTTP response: {lines[0][:80]!r}")
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon:
                raise BadResponse(f"not a header: {line[:80]!r}")
            headers[name.lower()] = value.strip()
        self._headers = headers
        connection = headers.get(b"connection", b"").lower()
        self.keep_alive = connection == b"keep-alive" if version == b"HTTP/1.0" else connection != b"close"
        status = int(code)
        length = headers.get(b"content-length")
        if status in (204, 304):
            self._length = 0
        elif headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self._length, self._chunks = None, bytearray()
        elif length is None:
            self._length = None
        elif length.isdigit() and (self._in_parts or int(length) <= BODY_BYTES_MAX):
            self._length = int(length)
        else:
            raise BadResponse(f"invalid content length {length[:40]!r}")
        return status

    def _read_body(self) -> HttpResponse | None:
        if self._chunks is not None:
            return self._read_chunks(self._chunks)
        if self._length is None:
            if len(self._buffer) > BODY_BYTES_MAX:
                raise BadResponse("the response body is too long")
            return None
        if len(self._buffer) < self._length:
            return None
        body = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        return self._finish(body)

    def _read_chunks(self, body: bytearray) -> HttpResponse | None:
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return None
            size_text = bytes(self._buffer[:end]).partition(b";")[0].strip()
            try:
                size = int(size_text, 16)
            except ValueError:
                raise BadResponse(f"invalid chunk size {size_text[:40]!r}") from None
            if size + len(body) > BODY_BYTES_MAX:
                raise BadResponse("the response body is too long")
            if size == 0:
                return self._read_trailers(body, end)
            if len(self._buffer) < end + 2 + size + 2:
                return None
            body += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]

    def _read_trailers(self, body: bytearray, end: int) -> HttpResponse | None:
        if self._buffer[end : end + 4] == b"\r\n\r\n":
            after = end + 4
        else:
            after = self._buffer.find(b"\r\n\r\n", end) + 4
            if after < 4:
                return None
        del self._buffer[:after]
        return self._finish(bytes(body))

    def _finish(self, body: bytes) -> HttpResponse:
        if self._buffer:
            self.keep_alive = False  # Extra bytes after the response: do not reuse the connection.
        answer = HttpResponse(self._status, self._headers, body)
        self._buffer.clear()
        self._status, self._headers, self._length, self._chunks = 0, {}, None, None
        return answer
