"""A request and a response, with strict JSON and limits that hold while a body is being read."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from penstock.errors import PenstockError
from penstock.model import LeasedMessage

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

JSON_DEPTH_MAX = 64
WHITE_SPACE = b" \t\r\n"
JSON_CONTAINERS_MAX = 500_000
JSON_BYTES_ON_LOOP = 256 << 10
"""More than this is decoded on a thread, so that others are served meanwhile."""
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
BRACKETS_ALIKE = bytes.maketrans(b"[{]}", b"(())")
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
JSON_TYPES = (b"application/json", b"text/json")
CONNECTION = "penstock.connection"
"""Where our own protocol puts itself into a request's scope."""


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
        stream: AsyncGenerator[bytes, None] | None = None,
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
    __slots__ = (
        "_connection",
        "_receive",
        "body_max",
        "headers",
        "leased",
        "method",
        "params",
        "principal",
        "query_string",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive, params: dict[str, str], body_max: int) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.query_string: bytes = scope["query_string"]
        self.params = params
        self.body_max = body_max
        self._receive = receive
        self._connection: Any = scope.get(CONNECTION)
        self.principal: Any = None
        self.leased: list[LeasedMessage] = []
        """What was leased for this client, to be given back unless it is known to have left."""

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def traceparent(self) -> str | None:
        """The caller's trace, if it is one."""
        value = self.header(b"traceparent")
        return value.decode("ascii") if value is not None and TRACEPARENT.fullmatch(value) else None

    @property
    def gone(self) -> bool:
        """Whether the client is known to have hung up. Under another server than ours, as far as it tells."""
        if self._connection is not None:
            return bool(self._connection.gone)
        return bool(getattr(getattr(self._receive, "__self__", None), "disconnected", False))

    @property
    def hung_up(self) -> bool:
        """As `gone`, but asking the kernel too."""
        return bool(self._connection.hung_up) if self._connection is not None else self.gone

    async def sent(self) -> bool:
        """Whether the whole answer has left for the kernel."""
        return bool(await self._connection.sent()) if self._connection is not None else not self.gone

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

    async def json(self, decoder: msgspec.json.Decoder[T], default: T | None = None) -> T:
        """The body as a struct; with a `default`, it may be missing."""
        if default is None:
            self._check_json_type()
        body = await self.body()
        if default is not None:
            if not body:
                return default
            self._check_json_type()
        if len(body) > JSON_BYTES_ON_LOOP:
            return await asyncio.to_thread(decode, body, decoder)
        return decode(body, decoder)

    def _check_json_type(self) -> None:
        content_type = self.content_type()
        if content_type and content_type not in JSON_TYPES and not content_type.endswith(b"+json"):
            raise HttpError(
                415, "wrong_content_type", f"cannot read {content_type.decode('latin-1')}", hint="send application/json"
            )


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
    reason, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").lstrip(".")
    if "field `" in reason:
        field = f"{field}.{reason.rpartition('field `')[2].rstrip('`')}".lstrip(".")
    wrong_type = ", got `" in reason
    return HttpError(
        status or (400 if wrong_type else 422),
        "wrong_type" if wrong_type else "invalid_value",
        reason[0].lower() + reason[1:],
        field=field or None,
    )


def check_json(body: bytes) -> None:
    """What a typed decoder does not see: depth, and names given twice anywhere."""
    containers = body.count(b"[") + body.count(b"{")
    if containers > JSON_CONTAINERS_MAX:
        raise HttpError(413, "body_too_large", f"the JSON has more than {JSON_CONTAINERS_MAX} arrays and objects")
    if containers > JSON_DEPTH_MAX and _too_deep(body):
        raise HttpError(400, "malformed_json", f"the JSON is nested deeper than {JSON_DEPTH_MAX}")
    try:
        # JSON without repeated names comes back as it was, but for white space; only what differs gets the slow look.
        again = _encoder.encode(_any.decode(body))
        if again == body or again.translate(None, WHITE_SPACE) == body.translate(None, WHITE_SPACE):
            return
        json.loads(body, object_pairs_hook=_unique)
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


def _too_deep(body: bytes) -> bool:
    """Each round takes off the innermost level: no loop over bytes, so that a large body does not hold up the rest."""
    brackets = STRING.sub(b"", body).translate(BRACKETS_ALIKE, NOT_BRACKETS)
    for _ in range(JSON_DEPTH_MAX):
        fewer = brackets.replace(b"()", b"")
        if len(fewer) == len(brackets):
            return False
        brackets = fewer
    return b"()" in brackets
