"""Who leases through this process, by the names they give: kept in memory, and told to the store with a heartbeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.commands import Beat
from penstock.model import Presence

NAMES_MAX = 10_000
NAME_MAX = 255
QUEUES_MAX = 20
"""Of one consumer, that are told: those it used last."""
HEARTBEAT_MS = 10_000
STALE_MS = 30_000
SOON_SECONDS = 1.0
"""Between two heartbeats at least, also when a new name is to be told."""


class Seat:
    __slots__ = ("queues", "silent_beats", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.silent_beats = 0
        """Since it was last here; after as many as make it stale it is forgotten."""
        self.queues: dict[str, None] = {}


class Roster:
    """Safe for threads. On the way of a message there is nothing but a look into a dictionary, and that only where the
    consumer has given a name."""

    def __init__(self) -> None:
        self.me: Presence | None = None
        """The server, if this is one; consumers of a process without one are told with `host` and `pid`."""
        self.host: str | None = None
        self.pid: int | None = None
        self.heartbeat_ms = HEARTBEAT_MS
        self.stale_ms = STALE_MS
        self.on_news: Callable[[], None] | None = None
        """Called when a name is met that the next heartbeat should not wait long to tell."""
        self._lock = threading.Lock()
        self._seats: dict[str, Seat] = {}
        self._fresh = False
        self._beat_at = 0.0

    def sit(self, name: str, queue: str) -> Seat | None:
        """It asks for messages, or waits for them: until it rises it is here."""
        if self.me is not None and name == self.me.name:
            return None
        with self._lock:
            seat = self._seats.get(name)
            if seat is None:
                if len(self._seats) >= NAMES_MAX or not 0 < len(name) <= NAME_MAX:
                    return None
                seat = self._seats[name] = Seat()
                self._fresh = True
            seat.waiting += 1
            seat.silent_beats = 0
            if queue not in seat.queues:
                seat.queues[queue] = None
                if len(seat.queues) > QUEUES_MAX:
                    del seat.queues[next(iter(seat.queues))]
        if self._fresh and self.on_news is not None:
            self.on_news()
        return seat

    def rise(self, seat: Seat | None) -> None:
        if seat is not None:
            with self._lock:
                seat.waiting -= 1
                seat.silent_beats = 0

    def due(self) -> bool:
        """Whether it is time for a heartbeat; said to one of all who ask."""
        now = time.monotonic()
        with self._lock:
            wait = SOON_SECONDS if self._fresh else self.heartbeat_ms / 1000
            if now < self._beat_at + wait and self._beat_at:
                return False
            self._beat_at = now
            return bool(self._seats)

    def beat(self) -> Beat:
        """What is to be told now."""
        forget_after = max(1, self.stale_ms // self.heartbeat_ms)
        present = [] if self.me is None else [self.me]
        with self._lock:
            self._fresh = False
            self._beat_at = time.monotonic()
            for name, seat in list(self._seats.items()):
                if seat.silent_beats >= forget_after and not seat.waiting:
                    del self._seats[name]
                elif seat.waiting or not seat.silent_beats:
                    present.append(self._consumer(name, seat))
                seat.silent_beats += 1
        return Beat(present=present, stale_ms=self.stale_ms)

    def leave(self) -> Beat:
        """All who were here are gone. Consumers of a server are not: they may go on at another."""
        if self.me is not None:
            return Beat(gone=[self.me], stale_ms=self.stale_ms)
        with self._lock:
            gone = [self._consumer(name, seat) for name, seat in self._seats.items()]
            self._seats.clear()
        return Beat(gone=gone, stale_ms=self.stale_ms)

    def _consumer(self, name: str, seat: Seat) -> Presence:
        server = None if self.me is None else self.me.name
        return Presence(
            kind="consumer", name=name, host=self.host, pid=self.pid, server=server, queues=tuple(seat.queues)
        )
