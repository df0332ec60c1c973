"""Responses that the SDK does not read: those of any length, and a report with an error status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.client._sync.http_session import Session
from penstock.client.http11 import HttpResponse, encode_request
from penstock.client.response_errors import error_of
from penstock.client.transport_errors import RequestFailed
from penstock.errors import Unreachable


def stream(session: Session, path: str) -> Iterator[HttpResponse]:
    """Get a response, whatever its status, in parts as they arrive."""
    request = encode_request("GET", session.base_path + path, session.headers, None)
    try:
        yield from session.connections.stream(request, session.timeout)
    except RequestFailed as failure:
        raise Unreachable(f"{session.where} is unreachable: {failure}", maybe_done=False) from None


def with_whole_body(parts: Iterable[HttpResponse]) -> HttpResponse:
    found = list(parts)
    return found[-1]._replace(body=b"".join(part.body for part in found))


def stream_body(session: Session, path: str) -> Iterator[bytes]:
    """Yield the body in parts; raise an error response."""
    parts = stream(session, path)
    for part in parts:
        if part.status >= 400:
            raise error_of(with_whole_body([part, *parts]), None, session.where)
        yield part.body
