"""`penstock stream …`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.common import (
    LONG_SECONDS,
    PAGE,
    PARTLY,
    YES,
    CommandFailed,
    Options,
    QueueName,
    call,
    every,
    on_streams,
    stream_path,
    with_options,
)
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.output import Data, Output, advance_to, confirm, plain, progress, when
from penstock.wire.streams import consumer_view, report_view, stream_detail, stream_view

if TYPE_CHECKING:
    from penstock.cli.common import Streams

LAZY = {
    "append": ("penstock.cli.stream_append:append", "Append records from a file, stdin or the command line."),
    "read": ("penstock.cli.stream_read:read", "Read records from an offset on."),
    "tail": ("penstock.cli.stream_read:tail", "Follow a stream."),
}
NUMBER = click.IntRange(1)


class StreamName(QueueName):
    name = "stream"


NAME = click.argument("name", type=StreamName())


def stream_options() -> Options:
    return [
        click.option("--segment-bytes", type=NUMBER, help="Size of a segment.  [default: 67108864]"),
        click.option("--retention-bytes", type=NUMBER, help="Keep about this much.  [default: everything]"),
        click.option("--retention-ms", type=NUMBER, help="Keep records about this long.  [default: forever]"),
        click.option(
            "--consumer-expire-ms", type=NUMBER, help="Ignore consumers idle for longer.  [default: 604800000]"
        ),
        click.option("--hold-bytes", type=NUMBER, help="Most to keep for lagging consumers.  [default: everything]"),
        click.option("--record-bytes", type=NUMBER, help="Largest record.  [default: 524288]"),
    ]


@click.group("stream", cls=LazyGroup, lazy=LAZY)
def command() -> None:
    """Append to, read, follow and repair streams."""


def _create(streams: Streams, out: Output, name: str, **options: Any) -> None:
    """Create a stream, or do nothing if it exists with the same options. JSON: the stream."""
    streams.create(name, {option: value for option, value in options.items() if value is not None})
    stream = plain(stream_view(streams.info(name)))
    out.show(stream, lambda: out.fields(_fields(stream)))


command.add_command(click.command("create")(NAME(with_options(on_streams(create=True)(_create), stream_options()))))


@command.command("list")
@click.option("--prefix", default="", help="Only streams whose name starts with this.")
@on_streams()
def list_streams(streams: Streams, out: Output, prefix: str) -> None:
    """List streams. JSON: {"streams": [...]}"""
    found = [plain(stream_view(info)) for info in every(lambda after: streams.list_all(prefix, PAGE, after))]
    headings = ("NAME", "FIRST", "NEXT", "BYTES", "SEGMENTS", "CONSUMERS")
    rows = [
        tuple(stream[field] for field in ("name", "first", "next", "bytes", "segment_count", "consumer_count"))
        for stream in found
    ]
    out.show({"streams": found}, lambda: out.table(headings, rows, empty="there are no streams"))


@command.command("show")
@NAME
@on_streams()
def show(streams: Streams, out: Output, name: str) -> None:
    """Show a stream's offsets, sizes, options, segments and consumers. JSON: the stream."""
    if streams.kind == "server":
        stream = call(streams.session, "GET", stream_path(name), queue=name)
    else:
        opened = streams.opened()
        stream = plain(stream_detail(opened.show(name), opened.segments(name), opened.consumers(name)))

    def draw() -> None:
        out.fields(_fields(stream))
        _show_consumers(out, stream["consumers"], empty="the stream has no consumers")

    out.show(stream, draw)


@command.command("rm")
@NAME
@click.option("--force", is_flag=True, help="Delete the stream even if it has consumers.")
@YES
@on_streams()
def remove(streams: Streams, out: Output, name: str, force: bool, yes: bool) -> None:
    """Delete a stream with all its records. JSON: {"dropped"}"""
    confirm(f"Delete the stream {name} with all its records?", yes)
    streams.drop(name, force)
    out.show({"dropped": name}, lambda: out.fields({"dropped": name}))


@command.command("trim")
@NAME
@click.option(
    "--before", type=click.IntRange(0), help="Remove segments before this offset.  [default: what retention allows]"
)
@click.option("--force", is_flag=True, help="Remove even what a consumer still needs.")
@YES
@on_streams(timeout=LONG_SECONDS)
def trim(streams: Streams, out: Output, name: str, before: int | None, force: bool, yes: bool) -> None:
    """Remove the oldest segments. JSON: {"first", "removed_records", …, "held_by"}"""
    confirm(f"Remove the oldest records of {name}?", yes)
    trimmed = plain(streams.trim(name, before, force))
    out.show(trimmed, lambda: out.fields(trimmed))


@command.command("consumers")
@NAME
@click.option("--set", "position", metavar="CONSUMER=OFFSET", help="Commit an offset: the last record processed.")
@click.option("--force", is_flag=True, help="Allow --set to move the offset back.")
@click.option("--forget", metavar="CONSUMER", help="Forget a consumer.")
@on_streams()
def consumers(streams: Streams, out: Output, name: str, position: str | None, force: bool, forget: str | None) -> None:
    """List consumers with their offset and lag; set or forget one. JSON: {"consumers": [...]}"""
    if position is not None:
        consumer, _, offset = position.rpartition("=")
        if not consumer or not offset.removeprefix("-").isdecimal():
            raise click.UsageError(f"--set: expected CONSUMER=OFFSET, got {position!r}")
        streams.commit(name, consumer, int(offset), force)
    if forget is not None:
        streams.forget(name, forget)
    found = [plain(consumer_view(each)) for each in streams.consumers(name)]
    out.show({"consumers": found}, lambda: _show_consumers(out, found, empty=f"{name} has no consumers"))


@command.command("check")
@NAME
@on_streams(timeout=LONG_SECONDS)
def check(streams: Streams, out: Output, name: str) -> None:
    """Check every record without changing anything. Exit code 1 if there is damage. JSON: the report."""
    with progress(f"check {name}", None) as advance:
        if streams.kind == "server":
            report = call(streams.session, "POST", f"{stream_path(name)}/check", queue=name)
        else:
            report = plain(report_view(streams.opened().check(name, advance_to(advance))))
    show_report(out, report)
    if not report["ok"]:
        raise CommandFailed(f"{name} is damaged: {len(report['findings'])} findings (`penstock stream repair {name}`)")


@command.command("repair")
@NAME
@YES
@on_streams(timeout=LONG_SECONDS)
def repair(streams: Streams, out: Output, name: str, yes: bool) -> None:
    """Repair a stream and recover records that were cut off. Intact records keep their offsets.

    Exit code 3 if records were lost, 1 if damage remains. JSON: the report.
    """
    confirm(f"Repair {name} and discard damaged records?", yes)
    with progress(f"repair {name}", None) as advance:
        if streams.kind == "server":
            report = call(streams.session, "POST", f"{stream_path(name)}/repair", queue=name)
        else:
            report = plain(report_view(streams.opened().repair(name, advance_to(advance))))
    finish_repair(out, name, report)


def finish_repair(out: Output, name: str, report: Data) -> None:
    """Print the report of a repair and exit with the code for its outcome."""
    show_report(out, report)
    if not report["ok"]:
        raise CommandFailed(f"{name} could not be repaired completely")
    if any(each["trouble"] in ("corrupt", "lost") for each in report["findings"]):
        raise CommandFailed(f"{name} is repaired; some of its records were lost", PARTLY)


def _fields(stream: Data) -> Data:
    shown = {field: stream[field] for field in ("name", "first", "next", "bytes")}
    shown |= {"segments": stream["segment_count"], "consumers": stream["consumer_count"]}
    shown |= {"created": when(stream["created_at"]), **stream["options"]}
    return shown


def _show_consumers(out: Output, found: list[Data], *, empty: str) -> None:
    headings = ("CONSUMER", "OFFSET", "LAG", "KIND", "SEEN", "EXPIRED")
    rows = [
        (each["consumer"], each["offset"], each["lag"], each["kind"], when(each["seen_at"]), each["expired"])
        for each in found
    ]
    out.table(headings, rows, empty=empty)


def show_report(out: Output, report: Data) -> None:
    def draw() -> None:
        out.fields({field: value for field, value in report.items() if field != "findings"})
        headings = ("TROUBLE", "SEGMENT", "FIRST", "LAST", "POSITION", "REPAIRED", "WHAT")
        rows = [
            tuple(each[field] for field in ("trouble", "segment", "first", "last", "position", "repaired", "text"))
            for each in report["findings"]
        ]
        if rows:
            out.table(headings, rows, empty="")

    out.show(report, draw)
