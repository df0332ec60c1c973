"""`penstock export`"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from penstock.cli.backend import Backend
from penstock.cli.common import QueueOption, on_queues
from penstock.cli.output import Output, note, progress, write


@click.command("export")
@click.option("--queue", cls=QueueOption, required=True, help="Queue name.")
@click.option(
    "--file", type=click.Path(dir_okay=False, allow_dash=True), default="-", help="File to write.  [default: stdout]"
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@on_queues()
def command(backend: Backend, out: Output, queue: str, file: str, force: bool) -> None:
    """Write a queue's messages as NDJSON, one per line. With --file and --json: {"exported", "file"}"""
    stats = backend.stats(queue)
    total = sum(stats[state] for state in ("ready", "scheduled", "leased", "dead", "archived"))
    with progress(f"export {queue}", total) as advance:

        def lines() -> Iterator[bytes]:
            for line in backend.export(queue):
                yield line
                advance(1)

        if file == "-":
            for line in lines():
                write(line)
            return
        count = _write_whole(Path(file), lines(), force)
    out.show({"exported": count, "file": file}, lambda: note(f"wrote {count} messages to {file}"))


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
