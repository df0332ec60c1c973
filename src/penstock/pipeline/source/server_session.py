"""The SDK's HTTP session for Spark tasks and the driver. It retries, so callers only send idempotent requests."""

from __future__ import annotations

from penstock import connect
from penstock.client._sync.http_session import Session
from penstock.errors import InvalidInput

ARROW = b"application/vnd.apache.arrow.stream"
ANSWER_SECONDS_MAX = 60
RETRY_SECONDS_MAX = 60.0


def open_session(url: str, token: str | None, *, retry_seconds: float = RETRY_SECONDS_MAX) -> Session:
    transport = connect(url, token=token, timeout=ANSWER_SECONDS_MAX, retry_for=retry_seconds).transport
    if transport.kind != "server":
        raise InvalidInput(f"{url!r} is not the URL of a server", field="url")
    return transport.session
