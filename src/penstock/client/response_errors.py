"""Turns error responses into exceptions. Attributes that the response has no field for are parsed from its text."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock import errors
from penstock.client.http11 import HttpResponse
from penstock.wire.http_errors import ErrorPlace, Problem

CLASSES: dict[str, type[errors.PenstockError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.PenstockError) and kind is not errors.PenstockError
} | {"body_too_large": errors.BatchTooLarge}
BY_STATUS: dict[int, type[errors.PenstockError]] = {
    400: errors.InvalidInput,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.BatchTooLarge,
    422: errors.InvalidInput,
    429: errors.TryLater,
    503: errors.StoreError,
}
_STREAM_ERRORS = (
    errors.CorruptRecord,
    errors.OffsetTrimmed,
    errors.OffsetBeyondEnd,
    errors.PositionMovesBack,
    errors.StreamExists,
    errors.StreamInUse,
    errors.UnknownConsumer,
    errors.UnknownStream,
)
_problem = msgspec.json.Decoder(Problem)


def error_of(answer: HttpResponse, queue: str | None, where: str) -> errors.PenstockError:
    """Return the exception for an error response of the server at `where`."""
    try:
        problem = _problem.decode(answer.body)
    except msgspec.MsgspecError:
        kind = BY_STATUS.get(answer.status, errors.ServerFault)
        text = " ".join(answer.body[:1_000].decode("utf-8", "replace").split())[:200]
        problem = Problem(f"{where} answered {answer.status} {text}".rstrip(), kind.code)
    kind = CLASSES.get(problem.code) or BY_STATUS.get(answer.status, errors.ServerFault)
    # The response carries the error's text, not the arguments of its constructor.
    error = kind.__new__(kind)
    error.args = (problem.error,)
    data: dict[str, Any] = {"hint": problem.hint, "maybe_done": problem.maybe_done}
    if kind.code != problem.code:
        data["code"] = problem.code
    if isinstance(error, errors.InvalidInput):
        data["field"] = problem.field
    elif isinstance(error, errors.TryLater):
        data["retry_after_ms"] = retry_after_ms(answer) or 1_000
    elif isinstance(error, errors.ServerFault):
        data["status"] = answer.status
    elif isinstance(error, errors.QueueExists):
        data |= {"queue": queue, "differing": problem.error.rpartition(": ")[2].split(", ")}
    elif isinstance(error, errors.StreamExists):
        data["differing"] = problem.error.rpartition(": ")[2].split(", ")
    elif isinstance(error, errors.QueueNotEmpty):
        data |= {"queue": queue, "messages": _first_int(problem.error.rpartition("holds ")[2])}
    elif isinstance(error, errors.UnknownQueue | errors.UnknownMessage):
        # A transaction may have named other queues.
        named = re.search(r"queue '(.+)'", problem.error)
        data["queue"] = named[1] if named else queue
    if isinstance(error, errors.LeaseLost | errors.UnknownMessage):
        data["message_id"] = _first_int(problem.error.partition("message ")[2])
    elif isinstance(error, errors.MissingExtra):
        data["extra"] = "arrow"
    error.__dict__.update(data)
    if isinstance(error, _STREAM_ERRORS):
        error.__dict__.update(_stream_error_data(error, queue, problem.place))
    return error


def retry_after_ms(answer: HttpResponse) -> int | None:
    value = answer.headers.get(b"retry-after", b"")
    return int(value) * 1000 if value.isdigit() and len(value) < 7 else None


def _first_int(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def _stream_error_data(error: errors.PenstockError, stream: str | None, place: ErrorPlace | None) -> dict[str, Any]:
    """Return the attributes of a stream's error."""
    text, hint = str(error.args[0]), error.hint or ""
    data: dict[str, Any] = {"stream": stream}
    if isinstance(error, errors.CorruptRecord):
        data |= (
            msgspec.structs.asdict(place)
            if place
            else {"offset": _after("record ", text), "segment": "", "position": None}
        )
    elif isinstance(error, errors.OffsetTrimmed):
        data |= {"offset": _after("offset ", text), "first_offset": _after("kept is ", hint)}
    elif isinstance(error, errors.OffsetBeyondEnd):
        data |= {"offset": _after("and ", text), "next_offset": _after("offset ", text)}
    elif isinstance(error, errors.PositionMovesBack):
        data |= {"offset": _after("and ", text), "committed": _after(" is at ", text)}
    elif isinstance(error, errors.StreamExists):
        data["differing"] = text.rpartition(": ")[2].split(", ")
    elif isinstance(error, errors.StreamInUse):
        data["consumers"] = text.rpartition(": ")[2].removesuffix(" …").split(", ")
    if isinstance(error, errors.PositionMovesBack | errors.UnknownConsumer):
        found = re.search(r"consumer '([^']*)'", text)
        data["consumer"] = found[1] if found else None
    return data


def _after(words: str, text: str) -> int:
    found = re.search(re.escape(words) + r"(\d+)", text)
    return int(found[1]) if found else 0
