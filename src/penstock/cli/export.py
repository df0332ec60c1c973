"""`penstock export`"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from penstock.cli.common import QueueOption, call, on_queues, queue_path
from penstock.cli.output import Output, note, plain, progress, write
from penstock.cli.responses import stream_body
from penstock.client._sync.client import Client


@click.command("export")
@click.option("--queue", cls=QueueOption, required=True, help="Queue name.")
@click.option(
    "--file", type=click.Path(dir_okay=False, allow_dash=True), default="-", help="File to write.  [default: stdout]"
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@on_queues()
def command(client: Client, out: Output, queue: str, file: str, force: bool) -> None:
    """Write a queue's messages as NDJSON, one per line. With --file and --json: {"exported", "file"}"""
    transport = client.transport
    if transport.kind == "server":
        stats = call(transport.session, "GET", f"{queue_path(queue)}/stats", queue=queue)
    else:
        stats = plain(transport.stats(queue))
    total = sum(stats[state] for state in ("ready", "scheduled", "leased", "dead", "archived"))
    with progress(f"export {queue}", total) as advance:

        def lines() -> Iterator[bytes]:
            for line in _export(client, queue):
                yield line
                advance(1)

        if file == "-":
            for line in lines():
                write(line)
            return
        count = _write_whole(Path(file), lines(), force)
    out.show({"exported": count, "file": file}, lambda: note(f"wrote {count} messages to {file}"))


def _export(client: Client, queue: str) -> Iterator[bytes]:
    transport = client.transport
    if transport.kind == "store":
        from penstock.wire.queue_views import export_line

        transport.info(queue)  # Raises UnknownQueue.
        yield from map(export_line, transport.broker.export(queue))
        return
    rest = b""
    for part in stream_body(transport.session, f"{queue_path(queue)}/export"):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _write_whole(target: Path, lines: Iterator[bytes], force: bool) -> int:
    """Write to a temporary file and rename it, so that the target is always complete."""
    if target.exists() and not force:
        raise click.ClickException(f"{target} exists already (--force overwrites it)")
    partial = target.with_name(target.name + ".partial")
    count = 0
    try:
        with partial.open("wb") as sink:
            for line in lines:
                sink.write(line)
                count += 1
            sink.flush()
            os.fsync(sink.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return count
