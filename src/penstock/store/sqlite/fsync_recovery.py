"""When a sync fails, the system may drop what it could not write, and the next sync that succeeds does not tell.

A transaction that fails with it is rolled back, and the next writes over its pages. But commits that did not wait for
the disk, such as leases, lie before it in the write-ahead log: a hole there would take back all that comes after it. So
until the whole log was written once more, nothing is committed. A file beside the log says so to whoever opens it next.
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
    """What one process knows of its log. A store in memory has none, and so no doubt."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._failed = int(path != MEMORY and _note(path).exists())
        except OSError as error:
            raise CannotOpen(f"cannot open {path}: {why_not(path)}") from error
        self._mended = 0
        # Held while the log is synced beside the commits, until it is known whether that failed.
        self._syncing = threading.Lock()

    def __bool__(self) -> bool:
        return self._failed != self._mended

    def learn(self, error: sqlite3.Error) -> None:
        """Of an error that may be a sync's."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
            self._begin()

    def _begin(self) -> None:
        if self._path != MEMORY:
            self._failed += 1
            # It need not outlive a power cut: after that, the log is what is on disk.
            with suppress(OSError):
                _note(self._path).touch(0o600)

    def end(self) -> None:
        """Under the write lock, before anything is written."""
        failed = self._failed
        _write_again(self._path)
        self._mended = failed

    def sync(self) -> None:
        """Sync the log beside the commits: what did not wait for the disk is on it then."""
        if self._path == MEMORY:
            return
        # SQLite holds no locks on this file, so that opening and closing it once more breaks none. Nor is the lock that
        # commits hold: a batch that finds it taken goes to a thread, where each statement waits for its turn.
        with self._syncing, suppress(FileNotFoundError):
            file = os.open(f"{self._path}-wal", os.O_RDONLY)
            try:
                os.fsync(file)
            except OSError as error:
                self._begin()
                raise StoreError(f"{self._path}: {error.strerror}", hint="the disk fails") from error
            finally:
                os.close(file)

    def check(self) -> None:
        """After a commit that waited for the disk: of a sync that failed beside it, its own may have told nothing."""
        with self._syncing:
            if self:
                raise StoreUnreachable(f"{self._path}: a sync failed while this was committed", maybe_done=True)


def _write_again(path: str) -> None:
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
