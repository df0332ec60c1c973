"""A small HTTP client for Spark tasks and the driver; it retries, so it only sends requests that are idempotent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from penstock.core.redact import without_password
from penstock.errors import InvalidInput, PenstockError, ServerFault, Unauthorized, Unreachable

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
ANSWER_SECONDS_MAX = 60
RETRY_SECONDS_MAX = 60.0
# Pauses between attempts: the first and the longest.
PAUSE_SECONDS = (0.05, 5.0)
TRANSIENT_STATUSES = (429, 502, 503, 504)
REDIRECTS = (301, 302, 303, 307, 308)
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class _NoRedirects(HTTPRedirectHandler):
    """Returns redirects to the caller, because following one would send the token to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_proxied = build_opener(_NoRedirects)
_direct = build_opener(_NoRedirects, ProxyHandler({}))


class ServerRefused(Exception):
    """An error response, with its status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def to_error(self) -> PenstockError:
        match self.status:
            case 401 | 403:
                return Unauthorized(f"the server rejected the token: {self.text}", hint="set the option token")
            case 400 | 413 | 422:
                return InvalidInput(self.text)
        return ServerFault(f"the server responded with {self.status}: {self.text}", status=self.status)


class ServerClient:
    def __init__(self, url: str, token: str | None, *, retry_seconds: float = RETRY_SECONDS_MAX) -> None:
        if "@" in urlsplit(url).netloc:
            raise InvalidInput("the URL must not contain a user or password", field="url", hint="set the option token")
        self.url = url.rstrip("/")
        self._token = token
        self._retry_seconds = retry_seconds

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, HTTPMessage]:
        """Send a request; retry for a while if the server is unavailable or overloaded."""
        deadline = time.monotonic() + self._retry_seconds
        pause, longest = PAUSE_SECONDS
        while True:
            wait = pause
            try:
                return self._request_once(method, path, body, headers or {})
            except HTTPError as error:
                with error:  # Closes its connection.
                    if error.code in REDIRECTS:
                        target = without_password(error.headers.get("Location", ""))
                        raise InvalidInput(
                            f"the server redirects to {target!r}", field="url", hint="use that address if you trust it"
                        ) from None
                    if error.code not in TRANSIENT_STATUSES or time.monotonic() > deadline:
                        raise ServerRefused(error.code, error.read(2000).decode(errors="replace")) from None
                    retry_after = error.headers.get("Retry-After", "")
                    wait = float(retry_after) if retry_after.isdecimal() else pause
            except (URLError, OSError, HTTPException) as error:
                if time.monotonic() > deadline:
                    raise Unreachable(f"no response from {self.url}: {error}", maybe_done=True) from None
            time.sleep(min(wait, longest))
            pause = min(2 * pause, longest)

    def _request_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[bytes, HTTPMessage]:
        request = Request(self.url + path, body, dict(headers), method=method)
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        opener = _direct if urlsplit(self.url).hostname in LOOPBACK else _proxied
        with opener.open(request, timeout=ANSWER_SECONDS_MAX) as response:
            return response.read(), response.headers
