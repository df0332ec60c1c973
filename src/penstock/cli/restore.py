"""`penstock restore`"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import click

from penstock.cli.backup import show_copied
from penstock.cli.common import DATA, DB, JSON, YES, CommandFailed, file_of, reporting
from penstock.cli.output import Output, advance_to, confirm, progress
from penstock.journal.drainer import journal_folder
from penstock.log.files import make_folder, sync_path
from penstock.log.streams import streams_beside
from penstock.ops.backup import PARTIAL, Copied, check_unused, copy_back, remove, swap_in
from penstock.store.sqlite.connection import mapping_errors
from penstock.store.sqlite.schema import SCHEMA_VERSION, schema_version

STEP_PAGES = 2_048


@click.command("restore")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@DB
@DATA
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@YES
@JSON
def command(source: Path, db: str | None, data: str | None, force: bool, yes: bool, as_json: bool) -> None:
    """Replace a queue file, its journal and its streams with the backup SOURCE. Nothing may have them open.

    A backup without a journal or streams leaves existing ones as they are. Damaged records are left out and reported,
    with exit code 3. JSON: {"restored", "bytes", "journal_records", "streams", "stream_records", "damaged": [a line for
    each log]}
    """
    target = file_of(db, data)
    if target is None:
        raise click.UsageError("give --data DIR (the data folder of a stopped server) or --db PATH (a queue file)")
    if target.exists() and target.samefile(source):
        raise click.UsageError(f"cannot restore {source} onto itself")
    if existing := _overwritten(source, target):
        if not force:
            raise CommandFailed(f"{existing[0]} exists already (--force overwrites it)")
        confirm(f"Overwrite {' and '.join(map(str, existing))}?", yes)
    out = Output(as_json)
    with reporting(), mapping_errors(str(target)):
        _check_unused(target)
        check_unused(target)
        copied = _restore(source, target)
    show_copied(out, "restored", target, copied)


def _overwritten(source: Path, target: Path) -> list[Path]:
    """Return the existing files and folders that the restore would replace."""
    parts = [target, *(beside(target) for beside in (journal_folder, streams_beside) if beside(source).exists())]
    return [part for part in parts if part.exists()]


def _check_unused(target: Path) -> None:
    """Fail if another process has the file open: SQLite can leave WAL mode only without other connections."""
    if not target.exists():
        return
    try:
        with closing(sqlite3.connect(target, timeout=0.2, isolation_level=None)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
            in_use = mode != "delete"
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise
        in_use = True
    except sqlite3.DatabaseError:
        return  # The file is damaged or not a database; restoring a backup is the way out.
    if in_use:
        raise CommandFailed(f"another process has {target} open (stop it first)")


def _restore(source: Path, target: Path) -> Copied:
    partial = target.with_name(target.name + PARTIAL)
    make_folder(target.parent)
    remove(partial)
    try:
        with closing(_open_read_only(source)) as backup, closing(sqlite3.connect(partial)) as copy:
            _check_backup(source, backup)
            with progress(f"restore {source}", None) as advance:
                report = advance_to(advance)
                backup.backup(
                    copy, pages=STEP_PAGES, progress=lambda _, remaining, total: report(total - remaining, total)
                )
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise CommandFailed(f"{source} is damaged: {verdict}")
        sync_path(partial)
        copied = copy_back(source, partial)
        for suffix in ("-wal", "-shm", "-journal"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        swap_in(partial, target)
        return copied
    finally:
        remove(partial)


def _open_read_only(source: Path) -> sqlite3.Connection:
    """Open the backup without writing, as its folder may be read-only.

    Without a write-ahead log nothing is changing it, so SQLite may treat it as immutable.
    """
    log = source.with_name(source.name + "-wal")
    how = "mode=ro" if log.exists() else "immutable=1"
    return sqlite3.connect(f"{source.absolute().as_uri()}?{how}", uri=True)


def _check_backup(source: Path, backup: sqlite3.Connection) -> None:
    try:
        version = schema_version(backup)
    except sqlite3.DatabaseError as error:
        raise CommandFailed(f"{source} cannot be read: {error}") from None
    if version == 0:
        raise CommandFailed(f"{source} is not a Penstock database (is this the right file?)")
    if version > SCHEMA_VERSION:
        raise CommandFailed(f"{source} was written by a newer Penstock, schema {version} (upgrade this one first)")
