"""Registry of the named consumers that lease through this process, reported to the store by heartbeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.core.commands import Beat
from penstock.core.model import Presence

NAMES_MAX = 10_000
NAME_MAX = 255
# Queues reported per consumer: the most recent ones.
QUEUES_MAX = 20
HEARTBEAT_MS = 10_000
STALE_MS = 30_000
# Minimum time between two heartbeats, also for a new name.
SOON_SECONDS = 1.0


class Registration:
    __slots__ = ("queues", "silent_beats", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        # Heartbeats since its last activity; after as many as make it stale, it is removed.
        self.silent_beats = 0
        self.queues: dict[str, None] = {}


class WorkerRegistry:
    """Tracks named consumers. Thread-safe. A lease costs one dictionary lookup, and only if the consumer has a name."""

    def __init__(self) -> None:
        # This server's entry; consumers of a process that is no server are reported with `host` and `pid`.
        self.me: Presence | None = None
        self.host: str | None = None
        self.pid: int | None = None
        self.heartbeat_ms = HEARTBEAT_MS
        self.stale_ms = STALE_MS
        # Called for a new name, to send the next heartbeat soon.
        self.on_new_worker: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._registrations: dict[str, Registration] = {}
        self._has_new_name = False
        self._beat_at = 0.0

    def register(self, name: str, queue: str) -> Registration | None:
        """Count a consumer as present while it leases or waits for messages, until `unregister`."""
        if self.me is not None and name == self.me.name:
            return None
        with self._lock:
            registration = self._registrations.get(name)
            if registration is None:
                if len(self._registrations) >= NAMES_MAX or not 0 < len(name) <= NAME_MAX:
                    return None
                registration = self._registrations[name] = Registration()
                self._has_new_name = True
            registration.waiting += 1
            registration.silent_beats = 0
            if queue not in registration.queues:
                registration.queues[queue] = None
                if len(registration.queues) > QUEUES_MAX:
                    del registration.queues[next(iter(registration.queues))]
        if self._has_new_name and self.on_new_worker is not None:
            self.on_new_worker()
        return registration

    def unregister(self, registration: Registration | None) -> None:
        if registration is not None:
            with self._lock:
                registration.waiting -= 1
                registration.silent_beats = 0

    def due(self) -> bool:
        """Return True to one caller when a heartbeat is due."""
        now = time.monotonic()
        with self._lock:
            wait = SOON_SECONDS if self._has_new_name else self.heartbeat_ms / 1000
            if now < self._beat_at + wait and self._beat_at:
                return False
            self._beat_at = now
            return bool(self._registrations)

    def beat(self) -> Beat:
        """Return the next heartbeat."""
        forget_after = max(1, self.stale_ms // self.heartbeat_ms)
        present = [] if self.me is None else [self.me]
        with self._lock:
            self._has_new_name = False
            self._beat_at = time.monotonic()
            for name, registration in list(self._registrations.items()):
                if registration.silent_beats >= forget_after and not registration.waiting:
                    del self._registrations[name]
                elif registration.waiting or not registration.silent_beats:
                    present.append(self._consumer(name, registration))
                registration.silent_beats += 1
        return Beat(present=present, stale_ms=self.stale_ms)

    def leave(self) -> Beat:
        """Return the final heartbeat, without the consumers of a server: they may continue at another one."""
        if self.me is not None:
            return Beat(gone=[self.me], stale_ms=self.stale_ms)
        with self._lock:
            gone = [self._consumer(name, registration) for name, registration in self._registrations.items()]
            self._registrations.clear()
        return Beat(gone=gone, stale_ms=self.stale_ms)

    def _consumer(self, name: str, registration: Registration) -> Presence:
        server = None if self.me is None else self.me.name
        return Presence(
            kind="consumer", name=name, host=self.host, pid=self.pid, server=server, queues=tuple(registration.queues)
        )
