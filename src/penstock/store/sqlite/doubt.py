"""When a sync fails, the system may drop what it could not write, and the next sync that succeeds does not tell.

A transaction that fails with it is rolled back, and the next writes over its pages. But commits that did not wait for
the disk, such as leases, lie before it in the write-ahead log: a hole there would take back all that comes after it. So
until the whole log was written once more, nothing is committed. A file beside the log says so to whoever opens it next.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from penstock.errors import StoreError

PIECE = 1 << 20


def is_doubtful(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR


def is_in_doubt(path: str) -> bool:
    return _note(path).exists()


def put_in_doubt(path: str) -> None:
    # It need not outlive a power cut: after that, the log is what is on disk.
    with suppress(OSError):
        _note(path).touch(0o600)


def write_again(path: str) -> None:
    """The log as it reads, so that the next sync is about all of it. Under the write lock, so that it does not grow."""
    try:
        with suppress(FileNotFoundError):
            log = os.open(f"{path}-wal", os.O_RDWR)
            try:
                at = 0
                while piece := os.pread(log, PIECE, at):
                    at += os.pwrite(log, piece, at)
                os.fsync(log)
            finally:
                os.close(log)
        _note(path).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"{path}: a sync failed, and what it was about could not be written again: {error.strerror}",
            hint="the disk fails, or is full; nothing is taken until it works",
        ) from error


def _note(path: str) -> Path:
    return Path(f"{path}-doubt")
