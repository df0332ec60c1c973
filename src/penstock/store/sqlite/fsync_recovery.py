"""Recovers the write-ahead log after a failed fsync.

After a failed fsync the kernel may drop the dirty pages, and a later fsync can succeed without reporting it. The
transaction that fails is rolled back, and the next one overwrites its pages. But commits that were not fsynced, such as
leases, come before it in the log, and a hole there would undo everything after it. So nothing is committed until the
whole log was rewritten. A file beside the log tells this to the next process that opens it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

from penstock.errors import CannotOpen, StoreError, StoreUnreachable
from penstock.store.sqlite.connection import MEMORY, why_not

PIECE = 1 << 20


class FsyncFailure:
    """True while the log of this process has to be rewritten. A store in memory has no log."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._failed = int(path != MEMORY and _note(path).exists())
        except OSError as error:
            raise CannotOpen(f"cannot open {path}: {why_not(path)}") from error
        self._recovered = 0
        # Held during an fsync beside the commits, until its result is known.
        self._syncing = threading.Lock()

    def __bool__(self) -> bool:
        return self._failed != self._recovered

    def check_error(self, error: sqlite3.Error) -> None:
        """Record the failure if the error may come from an fsync."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
            self._begin()

    def _begin(self) -> None:
        if self._path != MEMORY:
            self._failed += 1
            # The file need not survive a power cut: after one, the log is exactly what is on disk.
            with suppress(OSError):
                _note(self._path).touch(0o600)

    def recover(self) -> None:
        """Rewrite the log. Call under the write lock, before anything is written."""
        failed = self._failed
        _write_again(self._path)
        self._recovered = failed

    def sync(self) -> None:
        """Fsync the log beside the commits, so that commits that did not wait for the disk become durable."""
        if self._path == MEMORY:
            return
        # SQLite holds no locks on this file, so opening and closing it drops none. The lock of the commits is not taken
        # either: a batch that finds it taken moves to a thread, where each statement waits for its turn.
        with self._syncing, suppress(FileNotFoundError):
            file = os.open(f"{self._path}-wal", os.O_RDONLY)
            try:
                os.fsync(file)
            except OSError as error:
                self._begin()
                raise StoreError(f"{self._path}: {error.strerror}", hint="check the disk") from error
            finally:
                os.close(file)

    def check(self) -> None:
        """Raise an error after a durable commit if an fsync beside it failed, as its own may not have reported it."""
        with self._syncing:
            if self:
                raise StoreUnreachable(f"{self._path}: an fsync failed during the commit", maybe_done=True)


def _write_again(path: str) -> None:
    """Rewrite the log with what it reads as, so that the next fsync covers all of it.

    Runs under the write lock, so that the log does not grow meanwhile.
    """
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
            f"{path}: an fsync failed, and the log could not be rewritten: {error.strerror}",
            hint="check the disk and its free space; nothing is committed until it works",
        ) from error


def _note(path: str) -> Path:
    return Path(f"{path}-doubt")
