"""The SDK's HTTP session for Spark tasks and the driver. It retries, so callers only send idempotent requests."""

from __future__ import annotations

from typing import Any

from penstock import connect
from penstock.client._sync.http_session import Session
from penstock.client.http11 import HttpResponse
from penstock.errors import AccessDenied, InvalidInput, Unauthorized

ARROW = b"application/vnd.apache.arrow.stream"
ANSWER_SECONDS_MAX = 60
RETRY_SECONDS_MAX = 60.0


def open_session(url: str, token: str | None, *, retry_seconds: float = RETRY_SECONDS_MAX) -> Session:
    transport = connect(url, token=token, timeout=ANSWER_SECONDS_MAX, retry_for=retry_seconds).transport
    if transport.kind != "server":
        raise InvalidInput(f"{url!r} is not the URL of a server", field="url")
    return transport.session


def send(session: Session, method: str, path: str, body: Any = None, **how: Any) -> HttpResponse:
    """Send a request, for as long as retries may last; name Spark's option if the server rejects the token."""
    try:
        answer, _ = session.request(method, path, body, patient=True, **how)
    except AccessDenied as error:
        raise Unauthorized(f"the server rejected the token: {error.args[0]}", hint="set the option token") from None
    return answer
