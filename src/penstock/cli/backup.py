"""`penstock backup`"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
from msgspec.structs import asdict

from penstock.cli.common import DATA, DB, JSON, PARTLY, CommandFailed, check_file, file_of, reporting
from penstock.cli.output import Output, advance_to, note, progress
from penstock.ops.backup import Copied, back_up
from penstock.store.sqlite import SqliteStore


@click.command("backup")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@DB
@DATA
@JSON
def command(target: Path, db: str | None, data: str | None, as_json: bool) -> None:
    """Copy a queue file to TARGET, with its journal and streams, while servers and programs go on using it.

    Damaged records are left out and reported, with exit code 3. JSON: {"backup", "bytes", "journal_records",
    "streams", "stream_records", "damaged": [a line for each log]}
    """
    path = file_of(db, data)
    if path is None:
        raise click.UsageError(
            "give --data DIR (a server's data folder; the server may run) or --db PATH (a queue file)"
        )
    out = Output(as_json)
    with reporting(), progress(f"backup {path}", None) as advance:
        check_file(path)
        with closing(SqliteStore(path)) as store:
            copied = back_up(store, target, advance_to(advance))
    show_copied(out, "backup", target, copied)


def show_copied(out: Output, verb: str, target: Path, copied: Copied) -> None:
    """Print what was copied; exit with code 3 if some of it was damaged."""
    result = {verb: str(target), **asdict(copied)}
    out.show(result, lambda: out.fields(result | {"damaged": len(copied.damaged)}))
    for line in copied.damaged:
        note(line)
    if copied.damaged:
        raise CommandFailed("damaged records were left out (`penstock stream check` shows details)", PARTLY)
