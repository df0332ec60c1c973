"""Backs up and restores a file's queues, journal and streams while they are in use.

A backup has the layout of the original: a database file, and beside it the folders of its journal and streams.
docs/howto/back-up.md explains which parts are consistent, and why they are copied in this order.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from penstock.core.model import Progress
from penstock.errors import CannotOpen, Damaged, StoreBusy
from penstock.journal.drainer import journal_folder
from penstock.log.files import FolderLock, sync_path
from penstock.log.manifest import STREAM
from penstock.log.reader import LOCK
from penstock.log.snapshot import copy_log, read_positions
from penstock.log.streams import stream_folders, streams_beside
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.connection import why_not
from penstock.store.sqlite.transaction import JOURNAL

PARTIAL = ".partial"


class Copied(Struct):
    bytes: int
    journal_records: int
    """Told by the log beside the file; what it lacks is in the file."""
    streams: int
    stream_records: int
    damaged: list[str] = []
    """Damage per log: what was omitted, or copied unverified."""


def back_up(store: SqliteStore, target: Path, progress: Progress | None = None) -> Copied:
    for part in (target, journal_folder(target), streams_beside(target)):
        if part.exists():
            raise CannotOpen(f"{part} exists already", hint="a backup never overwrites; choose another name")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise CannotOpen(f"cannot write {target}: {why_not(str(target))}")
    making = target.with_name(target.name + PARTIAL)
    remove(making)
    try:
        positions = read_positions(journal_folder(store.path))
        store.backup(making, progress)
        copied = Copied(making.stat().st_size, 0, 0, 0)
        _copy_logs(copied, Path(store.path), making, positions or b"")
        put_in_place(making, target)
    finally:
        remove(making)
    return copied


def put_in_place(making: Path, target: Path) -> None:
    """Copy the database file last: if it exists, the backup is complete."""
    for beside in (journal_folder, streams_beside):
        if beside(making).exists():
            beside(making).rename(beside(target))
    making.rename(target)
    sync_path(target.parent)


def copy_back(source: Path, making: Path) -> Copied:
    """Return the folders of a backup, beside an unfinished database."""
    copied = Copied(making.stat().st_size, 0, 0, 0)
    _copy_logs(copied, source, making)
    return copied


def _copy_logs(copied: Copied, source: Path, making: Path, positions: bytes | None = None) -> None:
    """Copy the journal, with the positions of its consumers, and the streams."""
    journal = journal_folder(source)
    if (journal / STREAM).exists():
        end = _journal_end(making)
        copied.journal_records = _copy_log(copied, journal, journal_folder(making), end, positions)
    for folder in stream_folders(streams_beside(source)):
        aim = streams_beside(making) / folder.relative_to(streams_beside(source))
        copied.stream_records += _copy_log(copied, folder, aim)
        copied.streams += 1


def _copy_log(copied: Copied, source: Path, aim: Path, end: int | None = None, positions: bytes | None = None) -> int:
    """Copy a log; damage must not prevent saving the rest."""
    try:
        log = copy_log(source, aim, end=end, positions=positions)
    except Damaged as error:
        # The identity is unreadable, so no process can be writing to this log.
        shutil.copytree(source, aim, copy_function=_copy_file)
        copied.damaged.append(f"{error.args[0]}; all of {source} is copied as it stands")
        return 0
    if log.first_damage is not None:
        copied.damaged.append(f"{log.first_damage.args[0]}; records left out of {source}: {log.damaged}")
    return log.records


def _copy_file(source: str, target: str) -> None:
    shutil.copy2(source, target)
    sync_path(Path(target))


def swap_in(making: Path, target: Path) -> None:
    """Replace the existing files by the restored ones; no process has them open.

    The file first: a journal that is ahead of its file is known for what it is, one that is behind is not.
    """
    making.replace(target)
    sync_path(target.parent)
    for beside in (journal_folder, streams_beside):
        if beside(making).exists():
            old = beside(target).with_name(beside(target).name + ".old")
            shutil.rmtree(old, ignore_errors=True)
            if beside(target).exists():
                beside(target).rename(old)
            beside(making).rename(beside(target))
            sync_path(target.parent)
            shutil.rmtree(old, ignore_errors=True)


def check_unused(target: Path) -> None:
    """Raise if a process writes to the journal or a stream, which it does under a lock."""
    for folder in (journal_folder(target), *stream_folders(streams_beside(target))):
        if (folder / STREAM).exists():
            try:
                FolderLock(folder / LOCK).close()
            except StoreBusy:
                raise StoreBusy(f"another process writes to {folder}", hint="stop whatever uses it first") from None


def remove(making: Path) -> None:
    """Remove the leftovers of a failed attempt."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        making.with_name(making.name + suffix).unlink(missing_ok=True)
    for beside in (journal_folder, streams_beside):
        shutil.rmtree(beside(making), ignore_errors=True)


def _journal_end(database: Path) -> int:
    """Return the next journal offset in the copied database; later events are not part of the backup."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?immutable=1", uri=True)) as connection:
        _, following = connection.execute(JOURNAL["bounds"]).fetchone()
    return following or 0
