"""Connections to SQLite: settings, waiting for locks, and mapping of errors."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from penstock.errors import (
    CannotOpen,
    Damaged,
    DiskFull,
    InvalidInput,
    NotADatabase,
    ReadOnly,
    StoreBusy,
    StoreError,
    WrongType,
)

T = TypeVar("T")

MAYBE = "it may have been committed: check before trying again"
MEMORY = ":memory:"
SQLITE_VERSION_MIN = (3, 37, 0)
CACHE_KIB = 16_384
# A commit writes whole pages, and a small message does not fill a large one.
PAGE_BYTES = 2_048
# Pages in the write-ahead log at which a commit runs a checkpoint. A log that does not grow is fsynced faster, so it is
# short if each commit is fsynced. If none is, only checkpoints are fsynced, so they are rare.
WAL_PAGES = {"full": 500, "relaxed": 2_000}
# With a journal, whose rows are drained and deleted soon: most of its pages are overwritten before a checkpoint.
JOURNAL_WAL_PAGES = 4_000


def full_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, which stays valid if the process changes its working directory."""
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        raise WrongType(f"path: expected str or Path, got {type(path).__name__}", field="path")
    if not text or "\0" in text:
        raise InvalidInput(f"{text!r} is not a valid path", field="path", hint="name a file, or :memory:")
    return text if text == MEMORY else str(Path(text).absolute())


def connect(path: str, *, busy_ms: int, alone: bool = False) -> sqlite3.Connection:
    """Open a connection. With `alone`, it excludes all other connections to the file until it is closed."""
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        raise CannotOpen(
            f"SQLite {sqlite3.sqlite_version} is too old",
            hint="Penstock needs SQLite 3.37 (2021) or newer",
        )
    create_private(path)
    with mapping_errors(path):
        # SQLite itself waits only briefly, because its sleeps grow to 100 ms; `retry_while_busy` waits longer.
        connection = sqlite3.connect(
            path, timeout=0.004, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            if alone:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            retry_while_busy(lambda: _configure(connection), busy_ms)
        except BaseException:
            connection.close()
            raise
    return connection


def create_private(path: str) -> None:
    """Create a file that only its owner can access; SQLite gives the files beside it the same mode."""
    if path != MEMORY:
        # Opening and closing it would drop the locks of other connections in this process.
        with suppress(OSError):
            os.mknod(path, stat.S_IFREG | 0o600)


def _configure(connection: sqlite3.Connection) -> None:
    for setting in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "secure_delete = OFF",
        "temp_store = MEMORY",
        f"cache_size = -{CACHE_KIB}",
        f"wal_autocheckpoint = {WAL_PAGES['full']}",
        "journal_size_limit = 67108864",
    ):
        connection.execute(f"PRAGMA {setting}").fetchall()


def retry_while_busy(step: Callable[[], T], busy_ms: int) -> T:
    """Run a step that takes a lock, and retry for up to `busy_ms` while another process holds it."""
    try:
        return step()
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    deadline = time.monotonic() + busy_ms / 1000
    pause = 0.0005
    while True:
        time.sleep(random.uniform(0, pause))
        pause = min(pause * 1.5, 0.02)
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() > deadline:
                raise StoreBusy(
                    f"another process has held the write lock for {busy_ms} ms",
                    hint="end its long transaction, or raise busy_ms",
                ) from error


def is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def mapping_errors(path: str, *, committing: bool = False) -> Iterator[None]:
    """Map errors of SQLite to Penstock errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path, committing=committing) from error


def translate(error: sqlite3.Error, path: str, *, committing: bool = False) -> StoreError:
    """Return the error to raise.

    When a commit fails because of its fsync or because the index of the log could not grow, its last frame may already
    be in the write-ahead log, and a crash before the next write would bring the transaction back.
    """
    translation = _translation(error, path)
    if committing and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
        translation.maybe_done = True
        translation.hint = f"{translation.hint}; {MAYBE}"
    elif isinstance(translation, DiskFull):
        translation.hint = f"{translation.hint}; nothing of this request was kept"
    return translation


def _translation(error: sqlite3.Error, path: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary == sqlite3.SQLITE_NOTADB:
        return NotADatabase(f"{path} is not a SQLite database", hint="choose another path, or move the file away")
    if primary == sqlite3.SQLITE_CORRUPT:
        return Damaged(f"{path} is damaged: {error}", hint="run `penstock doctor` on it and restore a backup")
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return DiskFull(f"no room left for {path}", hint="free some disk space")
    if primary == sqlite3.SQLITE_READONLY:
        return ReadOnly(f"{path} cannot be written to", hint=_permission(path))
    if primary == sqlite3.SQLITE_CANTOPEN:
        return CannotOpen(f"cannot open {path}: {why_not(path)}")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"{path} is locked by another process", hint="end its long transaction")
    if primary == sqlite3.SQLITE_IOERR:
        return StoreError(f"{path}: {error}", hint="check the disk, quotas and file size limits")
    if str(error).startswith("no such table: penstock_"):
        hint = "a newer release changed the file while it was open, or its tables were dropped: open it again"
        return CannotOpen(f"{path}: {error}", hint=hint)
    return StoreError(f"{path}: {error}")


def _permission(path: str) -> str:
    """Return a hint; files that SQLite created beside the database keep the mode that it had then."""
    for beside in (f"{path}-wal", f"{path}-shm"):
        if os.access(path, os.W_OK) and Path(beside).exists() and not os.access(beside, os.W_OK):
            return f"{beside} is read-only: chmod u+w {beside}"
    return "check the permissions of the file and its folder"


def why_not(path: str) -> str:
    """Return the most likely reason why a file cannot be opened."""
    file = Path(path)
    folder = file.parent
    try:
        Path(f"{path}-journal").exists()
    except OSError as error:  # For example, the name is too long.
        return (error.strerror or str(error)).lower()
    if not folder.exists():
        return f"the folder {folder} does not exist"
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if file.is_dir():
        return "it is a folder"
    if not file.exists() and not os.access(folder, os.W_OK):
        return f"the folder {folder} cannot be written to"
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return "no permission to read and write it"
    return f"no permission or no space for the files that SQLite creates beside it in {folder}"
