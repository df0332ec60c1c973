"""A request and a response, with strict JSON and limits that hold while a body is being read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from penstock.errors import PenstockError

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

JSON_DEPTH_MAX = 64
JSON_TYPES = (b"application/json", b"application/x-ndjson", b"text/json")


class HttpError(PenstockError):
    """An error that only HTTP knows."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.field = field
        self.headers = headers or {}


class Disconnected(Exception):
    """The client has gone; there is nobody to answer."""


class Response:
    __slots__ = ("body", "content_type", "headers", "rows", "status", "stream")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        headers: list[tuple[bytes, bytes]] | None = None,
        rows: int | None = None,
        stream: AsyncIterator[bytes] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers or []
        self.rows = rows
        self.stream = stream


_encoder = msgspec.json.Encoder()


def reply(value: Any, status: int = 200, *, rows: int | None = None) -> Response:
    return Response(status, _encoder.encode(value), rows=rows)


class Request:
    __slots__ = ("_receive", "body_max", "headers", "method", "params", "principal", "query_string", "scope", "trace")

    def __init__(self, scope: Scope, receive: Receive, params: dict[str, str], body_max: int) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.query_string: bytes = scope["query_string"]
        self.params = params
        self.body_max = body_max
        self._receive = receive
        self.principal: Any = None
        self.trace: str | None = None

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def gone(self) -> bool:
        """Whether the server has noticed that the client hung up. Only uvicorn tells without being waited for."""
        return bool(getattr(getattr(self._receive, "__self__", None), "disconnected", False))

    async def wait_for_disconnect(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                return

    def query(self, kind: type[T]) -> T:
        """The query string as a struct; a name that is not asked for, or given twice, is refused."""
        if not self.query_string:
            defaults: T = _query_defaults(kind)  # type: ignore[arg-type]
            return defaults
        try:
            pairs = parse_qsl(
                self.query_string.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                max_num_fields=32,
                errors="strict",
            )
        except ValueError:
            raise HttpError(400, "malformed_query", "the query string cannot be read") from None
        values = dict(pairs)
        if len(values) < len(pairs):
            raise HttpError(422, "invalid_value", "a query parameter is given twice")
        try:
            return msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid(error, status=422) from None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, not limited in sum."""
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise Disconnected
            body = event.get("body", b"")
            if body:
                yield body
            if not event.get("more_body", False):
                return

    async def body(self) -> bytes:
        """The whole body, refused as soon as it is too large."""
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self.body_max:
            raise too_large(self.body_max)
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > self.body_max:
                raise too_large(self.body_max)
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def content_type(self) -> bytes:
        value = self.header(b"content-type")
        return b"" if value is None else value.partition(b";")[0].strip().lower()

    async def json(self, decoder: msgspec.json.Decoder[T]) -> T:
        content_type = self.content_type()
        if content_type and content_type not in JSON_TYPES and not content_type.endswith(b"+json"):
            raise HttpError(
                415, "wrong_content_type", f"cannot read {content_type.decode('latin-1')}", hint="send application/json"
            )
        return decode(await self.body(), decoder)


@lru_cache(maxsize=256)
def _query_defaults(kind: Any) -> Any:
    try:
        return msgspec.convert({}, kind)
    except msgspec.ValidationError as error:
        raise invalid(error, status=422) from None


def too_large(limit: int) -> HttpError:
    return HttpError(413, "body_too_large", "the request body is too large", hint=f"at most {limit} bytes")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Typed JSON: no unknown or repeated fields, no deep nesting, nothing that is not UTF-8."""
    if not body:
        raise HttpError(400, "malformed_json", "the body is empty", hint="send a JSON object")
    check_json(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        raise HttpError(400, "malformed_json", f"the body is not JSON: {error}") from None


def invalid(error: msgspec.ValidationError, *, status: int | None = None) -> HttpError:
    """msgspec says "Expected `int`, got `str` - at `$.priority`"."""
    text = str(error)
    reason, _, place = text.partition(" - at `")
    field = place.rstrip("`").removeprefix("$").lstrip(".") or None
    if field is None and "field `" in reason:
        field = reason.rpartition("field `")[2].rstrip("`")
    wrong_type = ", got `" in reason
    return HttpError(
        status or (400 if wrong_type else 422),
        "wrong_type" if wrong_type else "invalid_value",
        reason[0].lower() + reason[1:],
        field=field,
    )


def check_json(body: bytes) -> None:
    """What a typed decoder does not see: depth, and names given twice anywhere."""
    if body.count(b"[") + body.count(b"{") > JSON_DEPTH_MAX and _depth(body) > JSON_DEPTH_MAX:
        raise HttpError(400, "malformed_json", f"the JSON is nested deeper than {JSON_DEPTH_MAX}")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, "malformed_json", f"the body is not UTF-8 at byte {error.start}") from None
    # Compact JSON without repeated names comes back as long as it was; only what differs gets the slow look.
    try:
        if len(_encoder.encode(_any.decode(body))) == len(body):
            return
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except _RepeatedName as error:
        name = str(error)
        raise HttpError(400, "repeated_field", f"the name {name!r} is given twice", field=name) from None
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "malformed_json", f"the body is not JSON: {error}") from None


_any = msgspec.json.Decoder()


class _RepeatedName(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _RepeatedName(name)
        seen.add(name)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _depth(body: bytes) -> int:
    depth = deepest = 0
    in_string = escaped = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > JSON_DEPTH_MAX:
                return deepest
        elif byte in b"]}":
            depth -= 1
    return deepest
