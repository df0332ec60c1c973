"""Pages of a log as JSON or Arrow responses, with long polling, for streams and the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.config import Settings
from penstock.errors import CorruptRecord, MissingExtra
from penstock.server.api.polling import check_polls, until_disconnect
from penstock.server.http.messages import Request, Response
from penstock.server.log_waiters import LogWaiters, PageRead
from penstock.wire.arrow_records import check_arrow
from penstock.wire.http_errors import Disconnected, HttpError

if TYPE_CHECKING:
    import pyarrow as pa

ARROW = "application/vnd.apache.arrow.stream"
# Offset after an Arrow page, which has no field for it.
NEXT_HEADER = b"x-penstock-next"
PAGE_BYTES = 4 << 20
ARROW_PAGE_BYTES = 16 << 20
# Returns record batches, with a column `offset`, from one offset up to another.
Batches = Callable[[int, int], Iterable["pa.RecordBatch"]]


async def answer_page(
    request: Request,
    log_waiters: LogWaiters,
    settings: Settings,
    name: str,
    read_page: PageRead[Response],
    wait_ms: int,
) -> Response:
    """Return a page read on a thread; with `wait_ms`, wait for the first record while the client is connected."""
    if request.exchange.peer_closed:
        raise Disconnected
    wait_ms = min(wait_ms, settings.wait_ms_max)
    if not wait_ms:
        return await log_waiters.read(name, read_page, 0)

    def check() -> None:
        check_polls(log_waiters.waiting, settings)

    return await until_disconnect(request, log_waiters.read(name, read_page, wait_ms / 1000, check))


def wants_arrow(request: Request) -> bool:
    if ARROW.encode() not in (request.header(b"accept") or b""):
        return False
    require_arrow(406)
    return True


def require_arrow(status: int) -> None:
    """Raise with this status if pyarrow is not installed."""
    try:
        check_arrow()
    except MissingExtra as error:
        raise HttpError(status, error.code, "this server does not support Arrow", hint=f"{error.hint} there") from None


def chosen(schema: pa.Schema, columns: str | None) -> pa.Schema:
    """Return the schema of the requested columns and `offset`, which is needed to find the end of a page."""
    import pyarrow as pa

    if columns is None:
        return schema
    names = list(dict.fromkeys(["offset", *columns.split(",")]))
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        hint = f"choose from {', '.join(schema.names)}"
        raise HttpError(422, "invalid_value", f"unknown column {unknown[0]!r}", field="columns", hint=hint)
    return pa.schema([schema.field(name) for name in names])


def arrow_page(schema: pa.Schema, batches: Batches, first: int, end: int) -> tuple[Response, int | None]:
    """Return the records from `first` up to `end` that fit in one page. A damaged record ends the page; if it is the
    first, raise."""
    try:
        body, stop = _write(schema, batches, first, end)
    except CorruptRecord as error:
        if error.offset == first:
            raise
        body, stop = _write(schema, batches, first, error.offset)
    headers = [(NEXT_HEADER, str(stop).encode())]
    response = Response(200, body, content_type=ARROW.encode(), headers=headers, rows=stop - first)
    return response, stop if stop == first else None


def _write(schema: pa.Schema, batches: Batches, first: int, end: int) -> tuple[bytes, int]:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    stop = end
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches(first, end):
            writer.write_batch(batch)
            if len(batch) and sink.tell() >= ARROW_PAGE_BYTES:
                stop = int(batch["offset"][-1].as_py()) + 1
                break
    return sink.getvalue().to_pybytes(), stop
