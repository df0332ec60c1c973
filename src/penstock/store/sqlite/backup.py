"""Online backup of a file: consistent, verified, and renamed into place only when complete."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.core.model import Progress
from penstock.errors import CannotOpen, Damaged
from penstock.log.files import sync_path
from penstock.store.sqlite.connection import connect, create_private, mapping_errors, why_not

STEP_PAGES = 2_048


def backup(path: str, shared: sqlite3.Connection | None, target: Path, busy_ms: int, progress: Progress | None) -> None:
    if target.exists():
        raise CannotOpen(f"{target} already exists", hint="choose another name; a backup never overwrites a file")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        with mapping_errors(path):
            if shared is not None:
                _copy(shared, partial, progress)
            else:
                with closing(connect(path, busy_ms=busy_ms)) as source:
                    # An open read transaction pins the snapshot, so that writers cannot make the copy start over.
                    source.execute("BEGIN")
                    source.execute("SELECT count(*) FROM sqlite_master").fetchone()
                    _copy(source, partial, progress)
        sync_path(partial)
        partial.rename(target)
        sync_path(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def _copy(source: sqlite3.Connection, partial: Path, progress: Progress | None) -> None:
    def report(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    create_private(str(partial))
    try:
        copy = sqlite3.connect(partial)
    except sqlite3.OperationalError as error:
        raise CannotOpen(f"cannot write {partial}: {why_not(str(partial))}") from error
    with closing(copy):
        source.backup(copy, pages=STEP_PAGES, progress=report)
        (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise Damaged(
                f"the integrity check of the copy failed: {verdict}", hint="run `penstock doctor` on the file"
            )
