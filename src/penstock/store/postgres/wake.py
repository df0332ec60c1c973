"""Waking those who wait at other servers: LISTEN on a connection of its own, NOTIFY coalesced.

NOTIFY takes a lock of the whole database at commit, so a store sends at most one in a while with its own commits; what
happens in between is told by the thread that listens, once, and not before it can be seen.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from penstock.errors import PenstockError

SEND_SECONDS = 0.01
BACK_OFF_SECONDS = 1.0
LATE = " late"
"""After the sender: messages were scheduled for times that may have passed before anyone could see them."""
LOOK_SECONDS = 1.0
"""A server that was killed may have owed a word: who must not miss any looks so often, whatever was heard."""
Open = Callable[[], "psycopg.Connection[tuple[Any, ...]]"]


class Waker:
    def __init__(
        self,
        open_connection: Open,
        channel: str,
        heard: Callable[[], None] | None = None,
        heard_late: Callable[[], None] | None = None,
    ) -> None:
        """`heard` is called by the thread that listens, also when it cannot be sure; `heard_late`, for late ones."""
        self._open_connection = open_connection
        self._heard = heard
        self._heard_late = heard_late
        self.channel = channel
        self.sender = secrets.token_hex(8)
        self._sent_at = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.changes = 0
        self._pending = self._late = False
        self._closed = threading.Event()

    def start(self) -> None:
        """Listen; from here on `changes` moves when another store says so."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                connection = self._listen()
                self._awake, self._alarm = os.pipe()
                self._thread = threading.Thread(
                    target=self._run, args=(connection,), name="penstock-listen", daemon=True
                )
                self._thread.start()

    def start_over(self) -> None:
        """In a forked child: thread, connection and pipe are the parent's."""
        self._lock = threading.Lock()
        self._thread = None
        self._pending = self._late = False

    def may_send_now(self) -> bool:
        """Whether a commit may carry the word itself; if not, `tell_soon` follows it."""
        now = time.monotonic()
        if now - self._sent_at < SEND_SECONDS:
            return False
        self._sent_at = now
        return True

    def word(self, *, late: bool = False) -> str:
        return self.sender + LATE if late else self.sender

    def tell_soon(self, *, late: bool = False) -> None:
        """After a commit: whoever was told before it would have looked in vain."""
        if late:
            with self._lock:
                self._late = True
        if self._pending:
            return
        self._pending = True
        if self._thread is not None:
            with contextlib.suppress(OSError):
                os.write(self._alarm, b"\0")

    def _listen(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = self._open_connection()
        connection.execute(f'LISTEN "{self.channel}"'.encode())
        connection.execute("SET synchronous_commit = off")
        # Whatever was said before is not known.
        if self._heard_late is not None:
            self._heard_late()
        self.changes += 1
        return connection

    def _run(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        while not self._closed.is_set():
            try:
                self._follow(connection)
            except (psycopg.Error, OSError, ValueError):
                connection.close()
                connection = self._come_back() or connection
        connection.close()
        os.close(self._awake)
        os.close(self._alarm)

    def _come_back(self) -> psycopg.Connection[tuple[Any, ...]] | None:
        while not self._closed.is_set():
            try:
                return self._listen()
            except (PenstockError, psycopg.Error):
                self._closed.wait(BACK_OFF_SECONDS)
        return None

    def _follow(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._send(connection)
        while not self._closed.is_set():
            before, patience = self.changes, None if self._heard is None else LOOK_SECONDS
            readable, _, _ = select.select([connection.fileno(), self._awake], [], [], patience)
            if connection.fileno() in readable:
                connection.pgconn.consume_input()
                while (said := connection.pgconn.notifies()) is not None:
                    word = said.extra.decode()
                    if word.endswith(LATE) and self._heard_late is not None:
                        self._heard_late()
                        self.changes += 1
                    elif word != self.sender:
                        self.changes += 1
            if self._awake in readable:
                os.read(self._awake, 4096)
                self._send(connection)
            if self._heard is not None and (not readable or self.changes != before) and not self._closed.is_set():
                self._heard()

    def _send(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        if self._pending:
            time.sleep(max(0.0, self._sent_at + SEND_SECONDS - time.monotonic()))
            with self._lock:
                self._pending, late, self._late = False, self._late, False
            self._sent_at = time.monotonic()
            try:
                connection.execute("SELECT pg_notify(%s, %s)", (self.channel, self.word(late=late)))
            except psycopg.Error:
                with self._lock:
                    self._pending, self._late = True, self._late or late
                raise

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(OSError):
                os.write(self._alarm, b"\0")
            thread.join()
