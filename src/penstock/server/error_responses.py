"""Maps errors to HTTP responses: one table of statuses, one JSON shape."""

from __future__ import annotations

import math

import msgspec

from penstock import errors
from penstock.server.http.messages import Response
from penstock.wire.http_errors import ErrorPlace, HttpError, Problem

STATUS: tuple[tuple[type[errors.PenstockError], int], ...] = (
    (errors.PayloadTooLarge, 413),
    (errors.BatchTooLarge, 413),
    (errors.WrongType, 400),
    (errors.InvalidInput, 422),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.OffsetTrimmed, 410),
    (errors.TryLater, 429),
    (errors.CorruptRecord, 500),
    (errors.InvariantBroken, 500),
    (errors.StoreError, 503),
)
RETRY_AFTER_UNAVAILABLE_MS = 1_000


def status_of(error: errors.PenstockError) -> int:
    if isinstance(error, HttpError):
        return error.status
    for kind, status in STATUS:
        if isinstance(error, kind):
            return status
    return 500


def to_response(error: errors.PenstockError) -> Response:
    status = status_of(error)
    problem = Problem(str(error.args[0]), error.code, error.hint, getattr(error, "field", None))
    if isinstance(error, errors.CorruptRecord):
        problem.place = ErrorPlace(error.offset, error.segment, error.position)
    problem.maybe_done = getattr(error, "maybe_done", False)
    headers = [(name.encode(), value.encode()) for name, value in getattr(error, "headers", {}).items()]
    retry_ms = getattr(error, "retry_after_ms", RETRY_AFTER_UNAVAILABLE_MS if status == 503 else None)
    if retry_ms is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_ms / 1000))).encode()))
    return Response(status, msgspec.json.encode(problem), headers=headers)
