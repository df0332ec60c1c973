"""Keeping the WAL short without letting a commit pay for it: a thread of its own copies pages to the database."""

from __future__ import annotations

import sqlite3
import threading

from penstock.errors import StoreError
from penstock.store.sqlite.connection import MEMORY, connect

CHECKPOINT_BYTES = 8 << 20
WAL_FRAMES_HIGH = 8_000
COMMIT_BYTES = 16_384
"""What a commit writes beside payloads, about."""


class Checkpointer:
    """Counts what is written and starts a short-lived thread when it is enough."""

    def __init__(self, path: str, lock: threading.RLock, busy_ms: int) -> None:
        self._path = path
        self._lock = lock
        self._busy_ms = busy_ms
        self._connected = threading.Lock()
        self._written_bytes = 0
        self._thread: threading.Thread | None = None

    def committed(self, payload_bytes: int) -> None:
        self._written_bytes += COMMIT_BYTES + payload_bytes
        if self._written_bytes > CHECKPOINT_BYTES and self._path != MEMORY:
            running = self._thread
            if running is None or not running.is_alive():
                self._written_bytes = 0
                thread = threading.Thread(target=self._run, name="penstock-checkpoint", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return  # No more threads, or the interpreter is ending: a later commit checkpoints by itself.
                self._thread = thread

    def _run(self) -> None:
        with self._connected:
            try:
                connection = connect(self._path, busy_ms=self._busy_ms)
            except StoreError:
                return  # The next commits meet the same trouble and report it.
            try:
                _, frames, copied = _checkpoint(connection)
                if copied < frames and frames > WAL_FRAMES_HIGH:
                    # Commits that went on meanwhile keep the WAL from starting over: hold them for the short rest.
                    with self._lock:
                        _checkpoint(connection)
            finally:
                connection.close()

    def rest(self) -> None:
        """Wait until no checkpoint runs, and start none until `go_on`."""
        self._connected.acquire()

    def go_on(self) -> None:
        self._connected.release()

    def stop(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _checkpoint(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """(busy, frames in the WAL, frames copied); all 0 frames where another process does it, or where it fails."""
    try:
        busy, frames, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error:
        return 1, 0, 0  # What fails here fails the next commits or reads too, and they report it.
    return busy, frames, copied
