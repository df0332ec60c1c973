"""Wakes consumers at other servers: LISTEN on a dedicated connection, and coalesced NOTIFY.

NOTIFY takes a lock on the whole database at commit, so a store adds it only to some of its commits. The listening
thread sends one notification for the commits in between, after they are visible.

The payload is the sender, the changed queues, and `late` where it applies: `3f… =emails =a/b/c late`. A payload without
queues, as version 0.1.0 sends, concerns all of them.
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
# Suffix: messages were scheduled for times that may have passed before their commit was visible.
LATE = " late"
# Precedes the name of each queue.
NAMED = " ="
# A server may be killed before it notifies, so a user that must not miss a change also checks this often.
CHECK_SECONDS = 1.0
# PostgreSQL accepts payloads below 8,000 bytes.
PAYLOAD_BYTES_MAX = 7_900
# Queues named at once; beyond that the notification concerns all queues.
NAMES_MAX = 1_000
TOPICS_MAX = 100_000
Open = Callable[[], "psycopg.Connection[tuple[Any, ...]]"]


class Notifier:
    def __init__(
        self,
        open_connection: Open,
        channel: str,
        on_notify: Callable[[], None] | None = None,
        on_late_commit: Callable[[], None] | None = None,
    ) -> None:
        """Call `on_notify` after any change and `on_late_commit` after a late one, on the listening thread."""
        self._open_connection = open_connection
        self._on_notify = on_notify
        self._on_late_commit = on_late_commit
        self.channel = channel
        self.sender = secrets.token_hex(8)
        self._sent_at = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.changes = 0
        self._changes_lock = threading.Lock()
        self._changed_all = 0
        # By topic: the number of its last change.
        self._changed: dict[str, int] = {}
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._forget_pending()
        self._closed = threading.Event()

    def start(self) -> None:
        """Start listening; from then on `changes` grows when another store sends a notification."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                connection = self._listen()
                self._awake, self._alarm = os.pipe()
                self._thread = threading.Thread(
                    target=self._run, args=(connection,), name="penstock-listen", daemon=True
                )
                self._thread.start()

    def start_over(self) -> None:
        """Reset after a fork: thread, connection and pipe belong to the parent."""
        self._lock = threading.Lock()
        self._changes_lock = threading.Lock()
        self._thread = None
        self._listeners = ()
        self.sender = secrets.token_hex(8)  # Under the same name, parent and child would ignore each other.
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._pending = self._late = self._nameless = False
        self._names: set[str] = set()

    def version(self, topic: str) -> int:
        """Return the number of the last change that may concern this queue, task or namespace."""
        return max(self._changed_all, self._changed.get(topic, 0))

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener on the listening thread after each change; return a function that removes it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def stop() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return stop

    def may_send_now(self) -> bool:
        """Return True if the commit may include the notification; otherwise call `notify_later` after it."""
        now = time.monotonic()
        if now - self._sent_at < SEND_SECONDS:
            return False
        self._sent_at = now
        return True

    def payloads(self, names: Collection[str], *, late: bool = False) -> list[str]:
        """Return the fewest payloads that name all of these queues."""
        end = LATE if late else ""
        payloads, payload = [], self.sender
        for name in sorted(names) if len(names) <= NAMES_MAX else ():
            if len(payload) + len(name) + len(NAMED) + len(LATE) > PAYLOAD_BYTES_MAX:
                payloads.append(payload + end)
                payload = self.sender
            payload += NAMED + name
        return [*payloads, payload + end]

    def notify_later(self, names: Collection[str] = (), *, late: bool = False) -> None:
        """Notify about these queues, or all without names. Call after the commit, when its changes are visible."""
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
        connection.add_notify_handler(lambda notification: self._receive(notification.payload))
        connection.execute(f'LISTEN "{self.channel}"'.encode())
        connection.execute("SET synchronous_commit = off")
        # Notifications sent before this connection listened are lost.
        if self._on_late_commit is not None:
            self._on_late_commit()
        self._record(())
        return connection

    def _run(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        while not self._closed.is_set():
            try:
                self._follow(connection)
            except (psycopg.Error, OSError, ValueError):
                connection.close()
                connection = self._reconnect() or connection
        connection.close()
        os.close(self._awake)
        os.close(self._alarm)

    def _reconnect(self) -> psycopg.Connection[tuple[Any, ...]] | None:
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
            before, patience = self.changes, None if self._on_notify is None else CHECK_SECONDS
            readable, _, _ = select.select([connection.fileno(), self._awake], [], [], patience)
            if connection.fileno() in readable:
                connection.pgconn.consume_input()
                while (notification := connection.pgconn.notifies()) is not None:
                    self._receive(notification.extra.decode())
            if self._awake in readable:
                os.read(self._awake, 4096)
                self._send(connection)
            if self.changes != before:
                self._call_listeners()
            if self._on_notify is not None and (not readable or self.changes != before) and not self._closed.is_set():
                self._on_notify()

    def _receive(self, payload: str) -> None:
        sender, *parts = payload.split(" ")
        late = payload.endswith(LATE) and self._on_late_commit is not None
        if late and self._on_late_commit is not None:
            self._on_late_commit()
        if late or sender != self.sender:
            self._record([part.removeprefix(NAMED.strip()) for part in parts if part.startswith(NAMED.strip())])

    def _record(self, names: Iterable[str]) -> None:
        """Count a change of these queues, or of all queues without names."""
        found = [topic for name in names for topic in (*topics(name), name + DLQ_SUFFIX)]
        with self._changes_lock:
            number = self.changes + 1
            if not found or len(self._changed) + len(found) > TOPICS_MAX:
                self._changed_all = number
                self._changed.clear()
            else:
                self._changed.update(dict.fromkeys(found, number))
            self.changes = number

    def _call_listeners(self) -> None:
        for listener in self._listeners:
            # The event loop may have been closed before it removed its listener.
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
                        "SELECT pg_notify(%s, %s)", [(self.channel, text) for text in self.payloads(names, late=late)]
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
