"""`penstock stream read` and `tail`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli.common import PAGE, on_streams
from penstock.cli.output import Data, Output, compact, note, plain, progress, when, write
from penstock.cli.stream import NAME
from penstock.log.interface import EARLIEST
from penstock.wire.streams import PageView, record_view

if TYPE_CHECKING:
    from penstock.cli.common import Streams

WAIT_SECONDS = 20.0
STDOUT = "-"


@click.command("read")
@NAME
@click.option("--from", "start", type=click.IntRange(0), help="Offset to start from.  [default: the earliest]")
@click.option("--limit", type=click.IntRange(1), help="Most records to read.  [default: 100; with --arrow all]")
@click.option("--ndjson", is_flag=True, help="Print only the data, one record per line, as `append` reads it.")
@click.option(
    "--arrow",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write an Arrow IPC stream to this file; - is stdout.",
)
@on_streams()
def read(
    streams: Streams,
    out: Output,
    name: str,
    start: int | None,
    limit: int | None,
    ndjson: bool,
    arrow: str | None,
) -> None:
    """Read records in order. JSON: {"records": [{"offset", "timestamp", "data", "encoding"?}], "next"}"""
    if arrow is not None:
        if ndjson:
            raise click.UsageError("--arrow excludes --ndjson")
        _write_arrow(out, arrow, _read_arrow(streams, name, start, limit))
        return
    records, following = _read_up_to(streams, name, start, limit or 100)
    if ndjson:
        for record in records:
            write(line_of(record))
        return
    rows = [(record["offset"], when(record["timestamp"]), _shown(record)) for record in records]
    out.show(
        {"records": records, "next": following},
        lambda: out.table(
            ("OFFSET", "TIME", "DATA"), rows, empty=f"no records; the next offset of {name} is {following}"
        ),
    )


def _read_up_to(streams: Streams, name: str, start: int | None, limit: int) -> tuple[list[Data], int]:
    records: list[Data] = []
    while True:
        page = _page(streams, name, start, min(limit - len(records), PAGE), 0)
        records += page["records"]
        if len(records) >= limit or page["next"] == start or not page["records"]:
            return records, page["next"]
        start = page["next"]


def _page(streams: Streams, name: str, start: int | None, limit: int, wait_seconds: float) -> Data:
    page = streams.read(name, EARLIEST if start is None else start, limit, wait_seconds)
    return plain(PageView([record_view(record) for record in page.records], page.next, page.lost))


def _read_arrow(streams: Streams, name: str, start: int | None, limit: int | None) -> Iterator[Any]:
    first = streams.info(name).first if start is None else start
    yield from streams.read_arrow(name, first, None if limit is None else first + limit)


def _write_arrow(out: Output, target: str, batches: Iterable[Any]) -> None:
    from penstock.wire.arrow_records import check_arrow

    check_arrow()
    import pyarrow as pa

    from penstock.log.arrow import SCHEMA

    count = 0
    with (
        pa.OSFile(target, "wb") if target != STDOUT else pa.PythonFile(sys.stdout.buffer, "w") as sink,
        pa.ipc.new_stream(sink, SCHEMA) as writer,
        progress("read", None) as advance,
    ):
        for batch in batches:
            writer.write_batch(batch)
            count += len(batch)
            advance(len(batch))
    if target == STDOUT:
        note(f"{count} records")
    else:
        out.show({"file": target, "records": count}, lambda: out.fields({"file": target, "records": count}))


@click.command("tail")
@NAME
@click.option("--from", "start", type=click.IntRange(0), help="Offset to start from.")
@click.option(
    "--lines", type=click.IntRange(0), default=10, show_default=True, help="Start this many records before the end."
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many records.")
@click.option("--ndjson", is_flag=True, help="Print only the data, one record per line, as `append` reads it.")
@on_streams()
def tail(
    streams: Streams, out: Output, name: str, start: int | None, lines: int, limit: int | None, ndjson: bool
) -> None:
    """Print the last records and follow new ones until interrupted. JSON: a line for each record."""
    info = streams.info(name)
    at = max(info.first, info.next - lines) if start is None else start
    left = limit
    with suppress(KeyboardInterrupt):
        while left is None or left > 0:
            page = _page(streams, name, at, PAGE if left is None else min(left, PAGE), WAIT_SECONDS)
            for record in page["records"]:
                write(line_of(record) if ndjson else _followed(out, record))
            sys.stdout.flush()
            left = None if left is None else left - len(page["records"])
            at = page["next"]


def line_of(record: Data) -> bytes:
    """Return the record as a line that `append` reads."""
    data = record["data"]
    if record.get("encoding") is not None:
        return msgspec.json.encode({"data": data, "encoding": record["encoding"]}) + b"\n"
    if isinstance(data, dict) and data.keys() == {"data", "encoding"}:
        return msgspec.json.encode({"data": data, "encoding": "json"}) + b"\n"
    return msgspec.json.encode(data) + b"\n"


def _followed(out: Output, record: Data) -> bytes:
    if out.as_json:
        return msgspec.json.encode(record) + b"\n"
    return f"{record['offset']}  {when(record['timestamp'])}  {_shown(record)}\n".encode()


def _shown(record: Data) -> str:
    text = compact(record["data"])
    return text if record.get("encoding") is None else f"{record['encoding']}:{text}"
