"""Asking a server from a task or a driver of Spark: only what may be asked again, and with patience."""

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
AWAY_SECONDS_MAX = 60.0
# Between attempts: the first, and the longest.
PAUSE_SECONDS = (0.05, 5.0)
PASSING = (429, 502, 503, 504)
REDIRECTS = (301, 302, 303, 307, 308)
HERE = ("localhost", "127.0.0.1", "::1")


class _NoRedirects(HTTPRedirectHandler):
    """Leaves a redirect to the caller, as an answer: followed, it would take the token to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_through_proxies = build_opener(_NoRedirects)
_past_proxies = build_opener(_NoRedirects, ProxyHandler({}))


class ServerRefused(Exception):
    """With the status and the text of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def plain(self) -> PenstockError:
        match self.status:
            case 401 | 403:
                return Unauthorized(f"the server refuses this token: {self.text}", hint="the option token")
            case 400 | 413 | 422:
                return InvalidInput(self.text)
        return ServerFault(f"the server answered {self.status}: {self.text}", status=self.status)


class ServerClient:
    def __init__(self, url: str, token: str | None, *, away_seconds: float = AWAY_SECONDS_MAX) -> None:
        if "@" in urlsplit(url).netloc:
            raise InvalidInput("a server's address has no user and no password", field="url", hint="the option token")
        self.url = url.rstrip("/")
        self._token = token
        self._away_seconds = away_seconds

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, HTTPMessage]:
        """A server that is away, or under pressure, is asked again for a while."""
        deadline = time.monotonic() + self._away_seconds
        pause, longest = PAUSE_SECONDS
        while True:
            wait = pause
            try:
                return self._ask_once(method, path, body, headers or {})
            except HTTPError as error:
                if error.code in REDIRECTS:
                    place = without_password(error.headers.get("Location", ""))
                    raise InvalidInput(
                        f"the server redirects to {place!r}", field="url", hint="use that address if you trust it"
                    ) from None
                if error.code not in PASSING or time.monotonic() > deadline:
                    raise ServerRefused(error.code, error.read(2000).decode(errors="replace")) from None
                told = error.headers.get("Retry-After", "")
                wait = float(told) if told.isdecimal() else pause
            except (URLError, OSError, HTTPException) as error:
                if time.monotonic() > deadline:
                    raise Unreachable(f"no answer from {self.url}: {error}", maybe_done=True) from None
            time.sleep(min(wait, longest))
            pause = min(2 * pause, longest)

    def _ask_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[bytes, HTTPMessage]:
        request = Request(self.url + path, body, dict(headers), method=method)
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        opener = _past_proxies if urlsplit(self.url).hostname in HERE else _through_proxies
        with opener.open(request, timeout=ANSWER_SECONDS_MAX) as response:
            return response.read(), response.headers
