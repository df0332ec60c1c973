"""Keeps leases alive while their messages are worked on: extends them in the background, many with one request.

Made by tools/unasync.py from the asynchronous twin: change that.
"""

from __future__ import annotations

import logging
import time
import weakref

from penstock.client._sync.http_transport import HttpTransport
from penstock.client._sync.message import LeasedMessage
from penstock.client._sync.store_transport import StoreTransport
from penstock.client._concurrency_threads import BackgroundTasks, Mutex, OneShotEvent
from penstock.core import fork_safety
from penstock.core.commands import Settled, SettleItem
from penstock.errors import PenstockError

log = logging.getLogger("penstock.client")
IDLE_SECONDS = 5.0
JOIN_SECONDS = 1.0
RENEWALS = 3
"""A lease is renewed when a third of it has passed: two renewals may fail."""


class Renewal:
    __slots__ = ("due", "item", "lease_ms", "overdue", "queue", "ref", "until")

    def __init__(self, message: LeasedMessage, lease_ms: int, until: float, overdue: str | None) -> None:
        self.ref = weakref.ref(message)
        self.queue = message.queue
        self.item: SettleItem = message.item()
        self.lease_ms = lease_ms
        self.until = until
        self.overdue = overdue
        self.due = self.next_due(time.monotonic())

    def next_due(self, now: float) -> float:
        return min(now + self.lease_ms / 1000 / RENEWALS, self.until)


class LeaseRenewer:
    def __init__(self, transport: StoreTransport | HttpTransport) -> None:
        self._transport = transport
        self.after_fork_in_child()
        fork_safety.register(self)

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._kept: dict[tuple[int, str], Renewal] = {}
        self._mutex = Mutex()
        self._slot = OneShotEvent()
        self._wakes_at = 0.0
        self._closed = False
        self._background: BackgroundTasks | None = None

    def keep(self, message: LeasedMessage, lease_ms: int, seconds_max: float, overdue: str | None = None) -> None:
        """Extend the message's lease until it is settled, dropped, or `seconds_max` have passed.

        With `overdue`, the message is then nacked with this text.
        """
        kept = Renewal(message, lease_ms, time.monotonic() + seconds_max, overdue)
        with self._mutex:
            if self._closed:
                return
            self._kept[message.id, message.token] = kept
            if self._background is None or not self._background.running:
                self._wakes_at = kept.due
                self._background = BackgroundTasks(self._run, "penstock-keeper")
            elif kept.due < self._wakes_at:
                self._slot.set()

    def end(self, message: LeasedMessage) -> None:
        """It is settled."""
        message.settled = True
        self.forget(message)

    def forget(self, message: LeasedMessage) -> None:
        if self._kept:
            with self._mutex:
                self._kept.pop((message.id, message.token), None)

    def stop(self) -> None:
        """Keep nothing any more. A renewal that is under way goes on until the transport is closed."""
        with self._mutex:
            self._closed = True
            self._kept.clear()
        self._slot.set()

    def join(self) -> None:
        """Once the transport is closed: nothing comes of a renewal any more, but it may sleep before it sees that."""
        background = self._background
        if background is not None:
            background.cancel()
            background.join(JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            with self._mutex:
                due = [kept for kept in self._kept.values() if kept.due <= now]
            if due:
                self._renew(due, now)
            now = time.monotonic()
            with self._mutex:
                idle = not self._kept
                if self._closed or (idle and self._wakes_at < now):
                    self._background = None
                    return
                self._wakes_at = now + IDLE_SECONDS if idle else min(kept.due for kept in self._kept.values())
            self._slot.wait(self._wakes_at - now)

    def _renew(self, due: list[Renewal], now: float) -> None:
        groups: dict[tuple[str, int], list[Renewal]] = {}
        for kept in due:
            message = kept.ref()
            if message is None or message.settled or message.lost:
                self._drop(kept, message)
            elif kept.until <= now:
                self._give_up(kept, message)
            else:
                groups.setdefault((kept.queue, kept.lease_ms), []).append(kept)
            del message
        for (queue, lease_ms), group in groups.items():
            self._extend(queue, lease_ms, group)

    def _extend(self, queue: str, lease_ms: int, group: list[Renewal]) -> None:
        try:
            results = self._transport.settle(
                "extend",
                queue,
                [kept.item for kept in group],
                lease_ms=lease_ms,
                retry_for=lease_ms / 1000 / RENEWALS,
            )
        except PenstockError as error:
            if not self._closed:
                log.warning("leases on %r could not be extended: %s", queue, error)
            results = [Settled.OK] * len(group)
        now = time.monotonic()
        for kept, result in zip(group, results, strict=True):
            kept.due = kept.next_due(now)
            message = kept.ref()
            if result is not Settled.OK and message is not None and not message.settled:
                message.lost = True
                log.warning("the lease on message %d of %r is lost", kept.item.id, queue)
                self._drop(kept, message)

    def _give_up(self, kept: Renewal, message: LeasedMessage) -> None:
        self._drop(kept, message)
        if kept.overdue is None:
            log.warning("message %d of %r is no longer kept: it takes too long", kept.item.id, kept.queue)
            return
        log.error("message %d of %r failed: %s", kept.item.id, kept.queue, kept.overdue)
        try:
            message.nack(kept.overdue)
        except PenstockError as error:
            log.warning("message %d of %r could not be nacked: %s", kept.item.id, kept.queue, error)
        message.lost = True

    def _drop(self, kept: Renewal, message: LeasedMessage | None) -> None:
        with self._mutex:
            self._kept.pop((kept.item.id, str(kept.item.token)), None)
        if message is None:
            log.warning(
                "message %d of %r was neither acked nor nacked; it comes back when its lease ends",
                kept.item.id,
                kept.queue,
            )
