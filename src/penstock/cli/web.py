"""HTTP over the standard library's client, which imports quickly: one connection per thread, errors in one line."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from penstock.core.redact import without_password
from penstock.errors import InvalidInput, PenstockError

TIMEOUT_SECONDS = 60.0
CONNECT_SECONDS = 5.0
# Shorter than the server's idle timeout: a push on a connection the server is closing may or may not have arrived.
IDLE_SECONDS_MAX = 20.0


class ServerAway(PenstockError):
    code = "unreachable"


class RequestRefused(PenstockError):
    """An error response of the server."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        hint: str | None,
        retry_after: float | None,
        body: bytes,
        field: str | None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.body = body
        self.code = code
        self.retry_after = retry_after
        self.field = field


class Web:
    def __init__(self, url: str, token: str | None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidInput(
                f"{without_password(url)!r} is not a server URL", field="url", hint="use http://host:port"
            )
        if "@" in parts.netloc + parts.path:
            raise InvalidInput(
                "a server URL cannot contain a user or password", field="url", hint="give a token in PENSTOCK_TOKEN"
            )
        self.url = url
        self._tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port
        self._base = parts.path.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": "penstock-cli"}
        if token and not (token.isascii() and token.isprintable()):
            raise InvalidInput("the token contains characters that HTTP headers do not allow", field="token")
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._mine = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is not None and time.monotonic() - self._mine.used > IDLE_SECONDS_MAX:
            connection.close()
        if connection is None:
            kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
            connection = self._mine.connection = kind(self._host, self._port, timeout=CONNECT_SECONDS)
            self._all.append(connection)
        self._mine.used = time.monotonic()
        return connection

    def open(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        wait: float,
        extra: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request with `extra` headers, and raise error responses."""
        headers = self._headers if body is None else {**self._headers, "Content-Type": content_type}
        if extra:
            headers = {**headers, **extra}
        connection = self._connection()
        try:
            if connection.sock is None:
                connection.timeout = CONNECT_SECONDS
                connection.connect()
            connection.sock.settimeout(TIMEOUT_SECONDS + wait)
            # A server may refuse a request and close the connection before reading all of it: read its response.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._base + path, body, headers)
            response = connection.getresponse()
        except TimeoutError:
            connection.close()
            raise ServerAway(f"{self.url} did not answer in time", hint="is it overloaded?") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self.unreachable(error) from None
        except ValueError:
            connection.close()
            raise InvalidInput(f"{self.url!r} contains characters that URLs do not allow", field="url") from None
        if response.status >= 300:
            raise self._refused(response)
        return response

    def unreachable(self, error: Exception) -> ServerAway:
        if isinstance(error, http.client.HTTPException):
            peer_closed = isinstance(error, http.client.RemoteDisconnected | http.client.IncompleteRead)
            reason = "it closed the connection" if peer_closed else "it does not speak HTTP"
        else:
            reason = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
        return ServerAway(
            f"cannot reach {self.url}: {reason}",
            hint="is `penstock serve` running? use --db PATH to work without a server",
        )

    def _refused(self, response: http.client.HTTPResponse) -> RequestRefused:
        body = self.read(response)
        retry_after = response.headers.get("Retry-After") or ""
        try:
            problem = msgspec.json.decode(body, type=dict[str, Any])
            message, code, hint = str(problem["error"]), str(problem.get("code", "error")), problem.get("hint")
            field = problem.get("field")
        except (msgspec.DecodeError, KeyError):
            text = " ".join(body.decode("utf-8", "replace").split())[:200]
            message, code, hint = f"{self.url} answered {response.status} {text}".rstrip(), "error", None
            field = None
        if response.status == 401:
            hint = "set --token or PENSTOCK_TOKEN"
        return RequestRefused(
            response.status,
            message,
            code=code,
            hint=hint,
            retry_after=float(retry_after) if retry_after.isdigit() and response.status == 429 else None,
            body=body,
            field=field,
        )

    def read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection().close()
            raise self.unreachable(error) from None

    def request(self, method: str, path: str, value: Any = None, *, wait: float = 0, **query: Any) -> Any:
        given = {name: _text(each) for name, each in query.items() if each is not None}
        body = None if value is None else msgspec.json.encode(value)
        target = f"{path}?{urlencode(given)}" if given else path
        return self.decode(self.open(method, target, body, wait=wait))

    def decode(self, response: http.client.HTTPResponse) -> Any:
        try:
            return msgspec.json.decode(self.read(response))
        except msgspec.DecodeError:
            raise ServerAway(f"{self.url} did not answer in JSON", hint="is that a Penstock server?") from None

    def drop(self) -> None:
        """Close this thread's connection, because its response was not read to the end."""
        self._connection().close()

    def close(self) -> None:
        for connection in self._all:
            connection.close()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
