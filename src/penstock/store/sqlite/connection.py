"""One SQLite connection as Penstock wants it: settings, waiting for locks, and errors a person can act on."""

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

MAYBE = "it may have been kept: look before trying again"
MEMORY = ":memory:"
SQLITE_VERSION_MIN = (3, 37, 0)
CACHE_KIB = 16_384
# A commit writes whole pages; a small message fills no large one.
PAGE_BYTES = 2_048
# Then a commit copies them to the database and the log starts over. A log that does not grow is synced faster, so it is
# short where each commit is synced; where none is, the copying is what is synced, so it is seldom.
WAL_PAGES = {"full": 500, "relaxed": 2_000}
# With a journal, which is drained and forgotten soon: most of its pages are written anew before they are copied.
JOURNAL_WAL_PAGES = 4_000


def full_path(path: str | os.PathLike[str]) -> str:
    """The path that stays right when the program changes its folder."""
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        raise WrongType(f"path is a str or a Path, not {type(path).__name__}", field="path")
    if not text or "\0" in text:
        raise InvalidInput(f"{text!r} is no path", field="path", hint="name a file, or :memory:")
    return text if text == MEMORY else str(Path(text).absolute())


def connect(path: str, *, busy_ms: int, alone: bool = False) -> sqlite3.Connection:
    """With `alone`, only while no other connection is open on the file, and none can be until this one is closed."""
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        raise CannotOpen(
            f"SQLite {sqlite3.sqlite_version} is too old",
            hint="Penstock needs the SQLite 3.37 of 2021 or newer",
        )
    create_private(path)
    with mapping_errors(path):
        # A short wait inside SQLite, whose sleeps grow to 100 ms; the patient and fair one is `retry_while_busy`.
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
    """So that a new file is its owner's alone; SQLite gives the files beside it the same mode."""
    if path != MEMORY:
        # Not opened and closed: that would end the locks of whoever in this process has it open by now.
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


@contextmanager
def as_we_read(connection: sqlite3.Connection) -> Iterator[None]:
    """Rows as plain tuples and text as str, whatever the connection's owner has chosen."""
    chosen = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = chosen


def commits_itself(connection: sqlite3.Connection) -> bool:
    """Whether the connection's owner expects each statement to commit (from Python 3.12 on there are two ways to)."""
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True


def retry_while_busy(step: Callable[[], T], busy_ms: int) -> T:
    """Run a step that takes a lock, again and again while another process has it, up to `busy_ms`."""
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
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path, committing=committing) from error


def translate(error: sqlite3.Error, path: str, *, committing: bool = False) -> StoreError:
    """Return the error to raise. When a commit fails, its last frame may be in the write-ahead log already (its sync
    failed, or the index of the log could not grow): a crash before the next write then brings it back.
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
        return NotADatabase(f"{path} is not a SQLite database", hint="choose another path, or move that file away")
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
        return StoreError(f"{path}: {error}", hint="the disk fails, or a quota or a limit on file sizes was reached")
    return StoreError(f"{path}: {error}")


def _permission(path: str) -> str:
    """What SQLite keeps beside a file has the mode that the file had then."""
    for beside in (f"{path}-wal", f"{path}-shm"):
        if os.access(path, os.W_OK) and Path(beside).exists() and not os.access(beside, os.W_OK):
            return f"{beside} cannot: chmod u+w {beside}"
    return "check the permissions of the file and its folder"


def why_not(path: str) -> str:
    """The likeliest reason that a file cannot be opened."""
    file = Path(path)
    folder = file.parent
    try:
        Path(f"{path}-journal").exists()
    except OSError as error:  # Such as of a name that is too long.
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
    return f"no permission, or no room, for the files that SQLite keeps beside it in {folder}"
