"""`penstock backup`"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
from msgspec.structs import asdict

from penstock.cli.common import DATA, DB, JSON, PARTLY, CommandFailed, file_of, open_file, reporting
from penstock.cli.output import Output, note, progress
from penstock.ops.backup import Copied


@click.command("backup")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@DB
@DATA
@JSON
def command(target: Path, db: str | None, data: str | None, as_json: bool) -> None:
    """Copy a queue's file to TARGET, and its journal and streams beside that, while a server or others go on using it.

    Records that are damaged are left out and told, with exit code 3. JSON: {"backup", "bytes", "journal_records",
    "streams", "stream_records", "damaged": [a line for each log]}
    """
    path = file_of(db, data)
    if path is None:
        raise click.UsageError("of which file? --data DIR is a server's folder (it may run), --db PATH a queue's file")
    out = Output(as_json)
    with reporting(), closing(open_file(path, create=False)) as backend, progress(f"backup {path}", None) as advance:
        done = 0

        def report(copied: int, total: int) -> None:
            nonlocal done
            advance(copied - done, total)
            done = copied

        copied = backend.backup(target, report)
    show_copied(out, "backup", target, copied)


def show_copied(out: Output, verb: str, target: Path, copied: Copied) -> None:
    """And fail in part if some of it was damaged."""
    answer = {verb: str(target), **asdict(copied)}
    out.show(answer, lambda: out.fields(answer | {"damaged": len(copied.damaged)}))
    for line in copied.damaged:
        note(line)
    if copied.damaged:
        raise CommandFailed("all else is copied (`penstock stream check` tells more of a stream)", PARTLY)
