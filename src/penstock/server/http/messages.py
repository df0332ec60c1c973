"""Requests and responses as the handlers see them, under the built-in server and any ASGI server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from re import compile as pattern
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from penstock.core.model import Delivery
from penstock.wire import binary_batches
from penstock.wire.binary_batches import MSGPACK
from penstock.wire.http_errors import HttpError
from penstock.wire.strict_json import QUICK_BYTES, decode, invalid

if TYPE_CHECKING:
    from penstock.server.http.websocket import Socket

T = TypeVar("T")
# One thread, so that many large bodies at once leave CPU time and the other threads to other requests.
_body_thread = ThreadPoolExecutor(1, thread_name_prefix="body")
# Parameters that go into SQL unchanged. PostgreSQL rejects a NUL in them, so every server does.
LOOKED_UP = ("prefix", "after", "contains")
REMEMBERED_BYTES_MAX = 256
TREE = ("ns", "task", "name")
JSON_TYPES = (b"application/json", b"text/json")
REQUEST_ID = pattern(rb"[!-~]{1,128}")
TRACEPARENT = pattern(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of a call that takes no parameters."""


class Response:
    __slots__ = ("body", "content_type", "headers", "rows", "status", "stream", "stream_bytes")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        headers: list[tuple[bytes, bytes]] | None = None,
        rows: int | None = None,
        stream: AsyncGenerator[bytes, None] | None = None,
        stream_bytes: int = 0,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers or []
        self.rows = rows
        self.stream = stream
        # Bytes that the stream keeps in memory while its reader is slow.
        self.stream_bytes = stream_bytes


_encode = msgspec.json.Encoder().encode


def reply(value: Any, status: int = 200, *, rows: int | None = None) -> Response:
    return Response(status, _encode(value), rows=rows)


def reply_binary(value: Any, status: int = 200, *, rows: int | None = None) -> Response:
    return Response(status, binary_batches.encode(value), content_type=MSGPACK, rows=rows)


class Exchange(Protocol):
    """One request and its response on a connection of the built-in server (`HttpExchange`) or of an ASGI server."""

    @property
    def client(self) -> str | None:
        """Address of the peer: the client or a proxy."""

    @property
    def is_closed(self) -> bool:
        """True if the connection is known to be closed."""

    @property
    def peer_closed(self) -> bool:
        """True if `is_closed`, or if the kernel reports that the peer has closed."""

    @property
    def half_closed(self) -> bool:
        """True if the client has closed its side, perhaps only that, and no response has begun."""

    def wait_closed(self) -> asyncio.Future[None]:
        """Return a future that is done when the client disconnects."""

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end. Raise Disconnected."""

    async def send(self, request: Request, response: Response) -> None: ...

    async def upgrade(self, request: Request, slow_seconds: float) -> Socket:
        """Upgrade to a WebSocket whose client has `slow_seconds` to read what it is sent.

        Raise if the request is no WebSocket handshake. A response sent after the upgrade is ignored.
        """

    async def sent(self) -> bool:
        """Wait until the kernel has the whole response; return False if it never got it."""


class Request:
    """A request, and what the access log records about it."""

    __slots__ = (
        "_request_id",
        "body_max",
        "delivered",
        "exchange",
        "headers",
        "is_safe",
        "leased",
        "method",
        "named_queue",
        "params",
        "principal",
        "query_string",
        "raw_path",
        "route",
        "rows",
        "started",
        "status",
        "value_max",
    )

    def __init__(
        self,
        exchange: Exchange,
        method: str,
        raw_path: bytes,
        query_string: bytes,
        headers: dict[bytes, bytes],
        body_max: int,
    ) -> None:
        self.exchange = exchange
        self.method = method
        self.raw_path = raw_path
        self.query_string = query_string
        # By lower-case name; a repeated header keeps its first value.
        self.headers = headers
        self.body_max = body_max
        # Size limit of one value in a JSON body: a member, or an element of a member that is a list.
        self.value_max: int | None = None
        self.params: Mapping[str, str] = {}
        # False if the route hands messages out.
        self.is_safe = True
        self.principal: Any = None
        # The queue that the body or the query names, if the path names none.
        self.named_queue: str | None = None
        # Messages leased for this client, released again unless the response has been sent.
        self.leased: list[Delivery] = []
        self.started = time.perf_counter()
        self.route = "unmatched"
        self.status = 500
        self.rows: int | None = None
        # Trace contexts of the producers of the delivered messages.
        self.delivered: list[str] = []
        self._request_id: bytes | None = None

    @property
    def queue(self) -> str | None:
        """The queue for the access log; in the tree API also a task or a namespace."""
        params = self.params
        return params.get("queue") or "/".join(params[name] for name in TREE if name in params) or self.named_queue

    def header(self, name: bytes) -> bytes | None:
        return self.headers.get(name)

    @property
    def request_id(self) -> bytes:
        """The client's X-Request-ID if it is valid, otherwise a random one."""
        if self._request_id is None:
            given = self.headers.get(b"x-request-id")
            usable = given is not None and REQUEST_ID.fullmatch(given)
            self._request_id = given if given and usable else b"%016x" % random.getrandbits(64)
        return self._request_id

    @property
    def traceparent(self) -> str | None:
        """The caller's trace context, if the header is valid."""
        value = self.headers.get(b"traceparent")
        return value.decode("ascii") if value is not None and TRACEPARENT.fullmatch(value) else None

    def query(self, kind: type[T]) -> T:
        """Return the query string as a cached, shared struct; unknown and repeated names are errors."""
        parse: Any = _remembered_query if len(self.query_string) <= REMEMBERED_BYTES_MAX else _parse_query
        parsed: T = parse(self.query_string, kind)
        return parsed

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, without a limit on its total size."""
        while chunk := await self.exchange.read():
            yield chunk

    async def body(self) -> bytes:
        """Return the whole body; raise as soon as it is too large."""
        declared = self.headers.get(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self.body_max:
            raise too_large(self.body_max)
        first = await self.exchange.read()
        body = bytearray()
        chunk = first
        while chunk:
            if len(body) + len(chunk) > self.body_max:
                raise too_large(self.body_max)
            body += chunk
            chunk = await self.exchange.read()
        return first if len(first) == len(body) else bytes(body)

    def content_type(self) -> bytes:
        value = self.headers.get(b"content-type")
        return b"" if value is None else value.partition(b";")[0].strip().lower()

    @property
    def is_binary(self) -> bool:
        """True if the body is a binary batch."""
        return self.content_type() == MSGPACK

    @property
    def wants_binary(self) -> bool:
        """True if the response may be a binary batch. Errors are always JSON."""
        return MSGPACK in self.headers.get(b"accept", b"")

    async def binary(self, decode: Callable[[bytes], T], default: T | None = None) -> T:
        """Decode the body as a binary batch; an empty body gives the `default`, if there is one."""
        body = await self.body()
        if default is not None and not body:
            return default
        if len(body) <= QUICK_BYTES:
            return decode(body)
        return await asyncio.get_running_loop().run_in_executor(_body_thread, decode, body)

    async def json(self, decoder: msgspec.json.Decoder[T], default: T | None = None) -> T:
        """Decode the body as JSON; an empty body gives the `default`, if there is one."""
        if default is None:
            self._check_json_type()
        body = await self.body()
        if default is not None:
            if not body:
                return default
            self._check_json_type()
        return await decode_fairly(body, decoder, self.value_max)

    def _check_json_type(self) -> None:
        content_type = self.content_type()
        if content_type and content_type not in JSON_TYPES and not content_type.endswith(b"+json"):
            raise HttpError(
                415,
                "wrong_content_type",
                f"unsupported content type {content_type.decode('latin-1')}",
                hint="send application/json",
            )


async def decode_fairly(body: bytes, decoder: msgspec.json.Decoder[T], value_bytes_max: int | None = None) -> T:
    """Decode strict JSON, a large one on a thread, so that it does not block the event loop."""
    if len(body) <= QUICK_BYTES:
        return decode(body, decoder, value_bytes_max=value_bytes_max)
    work = partial(decode, body, decoder, value_bytes_max=value_bytes_max)
    return await asyncio.get_running_loop().run_in_executor(_body_thread, work)


def _parse_query(query_string: bytes, kind: Any) -> Any:
    pairs: list[tuple[str, str]] = []
    if query_string:
        try:
            pairs = parse_qsl(
                query_string.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                max_num_fields=32,
                errors="strict",
            )
        except ValueError:
            raise HttpError(400, "malformed_query", "malformed query string") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        raise HttpError(422, "invalid_value", "a query parameter is repeated")
    if any("\0" in values.get(name, "") for name in LOOKED_UP):
        raise HttpError(422, "invalid_value", "a query parameter contains a NUL")
    known = sorted(kind.__struct_encode_fields__)
    for name in values:
        if name not in known:
            raise HttpError(
                422,
                "invalid_value",
                f"unknown query parameter {name[:64]!r}",
                field=name[:64],
                hint=f"this call takes {', '.join(known)}"
                if known
                else "this call takes no parameters; see /docs for its body",
            )
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error, status=422) from None


# Consumers repeat the same query again and again.
_remembered_query = lru_cache(maxsize=1_024)(_parse_query)


def too_large(limit: int) -> HttpError:
    return HttpError(413, "body_too_large", "the request body is too large", hint=f"at most {limit} bytes")
