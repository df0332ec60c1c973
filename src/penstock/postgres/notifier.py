"""Waking those who wait at other servers: LISTEN on a connection of its own, NOTIFY coalesced.

NOTIFY takes a lock of the whole database at commit, so a store sends at most one in a while with its own commits; what
happens in between is told by the thread that listens, once, and not before it can be seen.

A notification is its sender, the queues it is about, and `late` where that applies, such as `3f… =emails =a/b/c late`.
One without queues, such as version 0.1.0 sends, is about all of them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import psycopg

from penstock.core.ids import DLQ_SUFFIX, topics
from penstock.errors import PenstockError

SEND_SECONDS = 0.01
BACK_OFF_SECONDS = 1.0
LATE = " late"
"""After the sender: messages were scheduled for times that may have passed before anyone could see them."""
NAMED = " ="
"""Before each queue's name."""
LOOK_SECONDS = 1.0
"""A server that was killed may have owed a word: who must not miss any looks so often, whatever was heard."""
WORD_BYTES_MAX = 7_900
"""PostgreSQL takes less than 8,000."""
NAMES_MAX = 1_000
"""Queues that are named in notifications of one moment; if there are more, all that wait look."""
INTERESTS_MAX = 100_000
Open = Callable[[], "psycopg.Connection[tuple[Any, ...]]"]


class Notifier:
    def __init__(
        self,
        open_connection: Open,
        channel: str,
        heard: Callable[[], None] | None = None,
        on_late_commit: Callable[[], None] | None = None,
    ) -> None:
        """The listening thread calls `heard` after any change, and `on_late_commit` after a late one."""
        self._open_connection = open_connection
        self._heard = heard
        self._heard_late = on_late_commit
        self.channel = channel
        self.sender = secrets.token_hex(8)
        self._sent_at = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.changes = 0
        self._changes_lock = threading.Lock()
        self._changed_all = 0
        self._changed: dict[str, int] = {}
        """By what may be waited for: the number of the last change that was about it."""
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._forget_pending()
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
        self._changes_lock = threading.Lock()
        self._thread = None
        self._listeners = ()
        self.sender = secrets.token_hex(8)  # Each hears the other only under another name.
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._pending = self._late = self._nameless = False
        self._names: set[str] = set()

    def version(self, topic: str) -> int:
        """Moves with `changes` when one of them may be about this queue, task or namespace."""
        return max(self._changed_all, self._changed.get(topic, 0))

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it in the thread that listens, whenever `changes` has moved; answers what ends that."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def stop() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return stop

    def may_send_now(self) -> bool:
        """Whether a commit may carry the word itself; if not, `notify_later` follows it."""
        now = time.monotonic()
        if now - self._sent_at < SEND_SECONDS:
            return False
        self._sent_at = now
        return True

    def words(self, names: Collection[str], *, late: bool = False) -> list[str]:
        """As few notifications as can name all of these queues."""
        end = LATE if late else ""
        words, word = [], self.sender
        for name in sorted(names) if len(names) <= NAMES_MAX else ():
            if len(word) + len(name) + len(NAMED) + len(LATE) > WORD_BYTES_MAX:
                words.append(word + end)
                word = self.sender
            word += NAMED + name
        return [*words, word + end]

    def notify_later(self, names: Collection[str] = (), *, late: bool = False) -> None:
        """After a commit: whoever was told before it would have looked in vain. Without names, about all queues."""
        with self._lock:
            self._names.update(names)
            self._nameless |= not names or len(self._names) > NAMES_MAX
            self._late |= late
            if self._pending:
                return
            self._pending = True
        if self._thread is not None:
            with contextlib.suppress(OSError):
                os.write(self._alarm, b"\0")

    def _listen(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = self._open_connection()
        # psycopg drops a notification that arrives with the reply to a statement, unless there is a handler for it.
        connection.add_notify_handler(lambda notification: self._hear(notification.payload))
        connection.execute(f'LISTEN "{self.channel}"'.encode())
        connection.execute("SET synchronous_commit = off")
        # Whatever was said before is not known.
        if self._heard_late is not None:
            self._heard_late()
        self._note(())
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
        self._call_listeners()
        while not self._closed.is_set():
            before, patience = self.changes, None if self._heard is None else LOOK_SECONDS
            readable, _, _ = select.select([connection.fileno(), self._awake], [], [], patience)
            if connection.fileno() in readable:
                connection.pgconn.consume_input()
                while (said := connection.pgconn.notifies()) is not None:
                    self._hear(said.extra.decode())
            if self._awake in readable:
                os.read(self._awake, 4096)
                self._send(connection)
            if self.changes != before:
                self._call_listeners()
            if self._heard is not None and (not readable or self.changes != before) and not self._closed.is_set():
                self._heard()

    def _hear(self, word: str) -> None:
        sender, *parts = word.split(" ")
        late = word.endswith(LATE) and self._heard_late is not None
        if late and self._heard_late is not None:
            self._heard_late()
        if late or sender != self.sender:
            self._note([part.removeprefix(NAMED.strip()) for part in parts if part.startswith(NAMED.strip())])

    def _note(self, names: Iterable[str]) -> None:
        """A change of these queues; of all, if there are none."""
        found = [topic for name in names for topic in (*topics(name), name + DLQ_SUFFIX)]
        with self._changes_lock:
            number = self.changes + 1
            if not found or len(self._changed) + len(found) > INTERESTS_MAX:
                self._changed_all = number
                self._changed.clear()
            else:
                self._changed.update(dict.fromkeys(found, number))
            self.changes = number

    def _call_listeners(self) -> None:
        for listener in self._listeners:
            # An event loop that was closed before it stopped listening.
            with contextlib.suppress(RuntimeError):
                listener()

    def _send(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        if self._pending:
            time.sleep(max(0.0, self._sent_at + SEND_SECONDS - time.monotonic()))
            with self._lock:
                names, late = () if self._nameless else self._names, self._late
                self._forget_pending()
            self._sent_at = time.monotonic()
            try:
                with connection.cursor() as cursor:
                    cursor.executemany(
                        "SELECT pg_notify(%s, %s)", [(self.channel, word) for word in self.words(names, late=late)]
                    )
            except psycopg.Error:
                self.notify_later(names, late=late)
                raise

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(OSError):
                os.write(self._alarm, b"\0")
            thread.join()
