"""The stream API, `/streams`: append-only logs read from any offset, and consumers with committed positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from penstock.config import Settings
from penstock.errors import InvalidName, PenstockError
from penstock.log.interface import EARLIEST
from penstock.log.model import READ_RECORDS_MAX, AppendOutcome, LogPage, StreamOptions
from penstock.log.streams import check_stream_name
from penstock.server.api.ndjson import after
from penstock.server.api.streams.bodies import is_streamed, read_streamed, read_whole
from penstock.server.api.streams.keys import StreamKeys
from penstock.server.api.streams.pages import PAGE_BYTES, answer_page, arrow_page, chosen, wants_arrow
from penstock.server.api.streams.routes import stream_routes
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route
from penstock.server.stream_service import StreamService
from penstock.wire import streams as shapes
from penstock.wire.http_errors import HttpError
from penstock.wire.queues import Done

KEY_LENGTH_MAX = 512
LIMIT_DEFAULT = 1_000

_create_stream = msgspec.json.Decoder(shapes.CreateStream)
_stream_changes = msgspec.json.Decoder(shapes.StreamChanges)
_new_consumer = msgspec.json.Decoder(shapes.NewConsumer)
_position = msgspec.json.Decoder(shapes.Position)
_trim_body = msgspec.json.Decoder(shapes.TrimBody)


class StreamApi:
    def __init__(self, streams: StreamService, settings: Settings, keys: StreamKeys) -> None:
        self._service = streams
        self._keys = keys
        self._streams = streams.streams
        self._settings = settings

    def routes(self) -> list[Route]:
        return stream_routes(self)

    # Streams

    async def create(self, request: Request) -> Response:
        body = await request.json(_create_stream)
        options = msgspec.convert(_given(body), StreamOptions)
        try:
            check_stream_name(body.name)
        except InvalidName as error:
            error.field = "name"
            raise

        def create() -> Response:
            created = self._streams.create(body.name, options)
            return reply(shapes.stream_view(self._streams.show(body.name)), 201 if created else 200)

        response = await self._service.call(create)
        if response.status == 201:
            await self._keys.revoke_all(body.name)
        return response

    async def list_all(self, request: Request) -> Response:
        query = request.query(shapes.StreamListQuery)
        found = await self._service.call(
            lambda: self._streams.list_streams(prefix=query.prefix, after=query.after, limit=query.limit)
        )
        more = found[-1].name if len(found) == query.limit else None
        return reply(shapes.StreamList([shapes.stream_view(info) for info in found], more), rows=len(found))

    async def show(self, request: Request) -> Response:
        name = _stream(request)

        def show() -> Response:
            streams = self._streams
            return reply(shapes.stream_detail(streams.show(name), streams.segments(name), streams.consumers(name)))

        return await self._service.call(show)

    async def change(self, request: Request) -> Response:
        name = _stream(request)
        changes = _given(await request.json(_stream_changes))

        def change() -> Response:
            options = self._streams.show(name).options
            return reply(shapes.stream_view(self._streams.configure(name, msgspec.structs.replace(options, **changes))))

        return await self._service.call(change)

    async def drop(self, request: Request) -> Response:
        name = _stream(request)
        await self._service.drop(name, force=request.query(shapes.DropStreamQuery).force)
        await self._keys.revoke_all(name)
        return reply(shapes.DroppedStream(name))

    async def trim(self, request: Request) -> Response:
        name = _stream(request)
        body = await request.json(_trim_body, shapes.TrimBody())
        trimmed = await self._service.call(
            lambda: self._streams.trim(name, body.before, force=body.force), background=True
        )
        return reply(trimmed, rows=trimmed.removed_records)

    async def check(self, request: Request) -> Response:
        name = _stream(request)
        return reply(shapes.report_view(await self._service.call(lambda: self._streams.check(name), background=True)))

    async def repair(self, request: Request) -> Response:
        name = _stream(request)
        return reply(shapes.report_view(await self._service.call(lambda: self._streams.repair(name), background=True)))

    # Records

    async def append(self, request: Request) -> Response:
        name = _stream(request)
        key = _key(request)
        since = request.query(shapes.AppendQuery).since
        if since is not None and key is None:
            raise HttpError(
                422,
                "invalid_value",
                "since needs an Idempotency-Key",
                field="since",
                hint="send the header Idempotency-Key",
            )
        if is_streamed(request):
            return await self._append_all(request, name, key, since)
        payloads = await read_whole(request)
        appended, again = await self._service.append(name, payloads, key, since)
        answer = shapes.Appended(appended.first, appended.last, len(payloads))
        return reply(answer, 200 if again else 201, rows=len(payloads))

    async def _append_all(self, request: Request, name: str, key: str | None, since: int | None) -> Response:
        """Append record by record, committed in batches; the size limit applies to each record."""
        record_bytes = (await self._service.call(lambda: self._streams.show(name))).options.record_bytes
        parts: list[AppendOutcome] = []
        done, is_new = 0, False
        try:
            async for batch in read_streamed(request, record_bytes):
                part_key = None if key is None else f"{key}:{len(parts)}"
                appended, again = await self._service.append(name, batch, part_key, since)
                parts.append(appended)
                done += len(batch)
                is_new = is_new or not again
        except PenstockError as error:
            raise after(done, error, "records") from None
        if not parts:
            raise HttpError(422, "invalid_value", "no records to append", field="records")
        return reply(shapes.Appended(parts[0].first, parts[-1].last, done), 201 if is_new else 200, rows=done)

    async def read(self, request: Request) -> Response:
        query = request.query(shapes.ReadQuery)
        name = _stream(request)
        offset = EARLIEST if query.from_ is None else query.from_
        limit = query.limit
        if wants_arrow(request):
            read_page = partial(self._arrow, name, offset, limit, query.columns)
        else:
            read_page = partial(self._json, partial(self._streams.read, name, offset), limit)
        return await answer_page(request, self._service.log_waiters, self._settings, name, read_page, query.wait_ms)

    async def next(self, request: Request) -> Response:
        query = request.query(shapes.NextQuery)
        name = _stream(request)
        if wants_arrow(request):
            read_page = partial(self._next_arrow, name, query.consumer, query.limit)
        else:
            read_page = partial(self._json, partial(self._streams.next, name, query.consumer), query.limit)
        return await answer_page(request, self._service.log_waiters, self._settings, name, read_page, query.wait_ms)

    def _json(self, read: Any, limit: int | None) -> tuple[Response, int | None]:
        page: LogPage = read(limit=min(limit or LIMIT_DEFAULT, READ_RECORDS_MAX), bytes_max=PAGE_BYTES)
        view = shapes.PageView([shapes.record_view(record) for record in page.records], page.next, page.lost)
        return reply(view, rows=len(page.records)), None if page.records else page.next

    def _next_arrow(self, name: str, consumer: str, limit: int | None) -> tuple[Response, int | None]:
        # Reading one record registers the consumer and returns its position.
        page = self._streams.next(name, consumer, limit=1, bytes_max=1)
        return self._arrow(name, page.records[0].offset if page.records else page.next, limit)

    def _arrow(
        self, name: str, offset: int, limit: int | None, columns: str | None = None
    ) -> tuple[Response, int | None]:
        from penstock.log.arrow import SCHEMA

        shape = chosen(SCHEMA, columns)

        def batches(low: int, high: int) -> Any:
            return self._streams.read_arrow(name, low, high, columns=shape.names)

        if offset == EARLIEST:
            offset = self._streams.show(name).first
        end = max(offset, min(self._streams.next_offset(name), offset + (limit or shapes.ARROW_RECORDS_MAX)))
        return arrow_page(shape, batches, offset, end)

    # Consumers

    async def add_consumer(self, request: Request) -> Response:
        name = _stream(request)
        body = await request.json(_new_consumer, shapes.NewConsumer())
        consumer = await self._service.call(lambda: self._streams.create_consumer(name, body.consumer, kind=body.kind))
        return reply(shapes.consumer_view(consumer), 201)

    async def list_consumers(self, request: Request) -> Response:
        name = _stream(request)
        found = await self._service.call(lambda: self._streams.consumers(name))
        return reply(shapes.ConsumerList([shapes.consumer_view(consumer) for consumer in found]), rows=len(found))

    async def consumer(self, request: Request) -> Response:
        name, consumer = _stream(request), request.params["consumer"]
        return reply(shapes.consumer_view(await self._service.call(lambda: self._streams.consumer(name, consumer))))

    async def commit(self, request: Request) -> Response:
        name, consumer = _stream(request), request.params["consumer"]
        body = await request.json(_position)
        committed = await self._service.commit(name, consumer, body.offset, force=body.force, kind=body.kind)
        return reply(shapes.consumer_view(committed))

    async def forget(self, request: Request) -> Response:
        name, consumer = _stream(request), request.params["consumer"]
        await self._service.call(lambda: self._streams.forget(name, consumer))
        return reply(Done())


def _stream(request: Request) -> str:
    return check_stream_name(request.params["stream"])


def _given(body: Any) -> dict[str, Any]:
    """Return the options that were sent."""
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    given.pop("name", None)
    return given


def _key(request: Request) -> str | None:
    value = request.header(b"idempotency-key")
    if value is None:
        return None
    key = value.decode("latin-1")
    if not 0 < len(key) <= KEY_LENGTH_MAX or not key.isprintable():
        raise HttpError(
            422,
            "invalid_value",
            f"invalid Idempotency-Key; expected 1 to {KEY_LENGTH_MAX} printable characters",
            field="Idempotency-Key",
        )
    return key
