# Made by tools/unasync.py from the asynchronous twin: change that.
"""Extends the leases of messages in progress, in the background, many with one request."""

from __future__ import annotations

import logging
import time
import weakref
from typing import TYPE_CHECKING

from penstock.client._sync.message import LeasedMessage
from penstock.client._concurrency_threads import BackgroundTasks, Mutex, OneShotEvent
from penstock.core import fork_safety
from penstock.core.commands import Settled, SettleItem
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client._sync.http_transport import HttpTransport
    from penstock.client._sync.store_transport import StoreTransport

log = logging.getLogger("penstock.client")
IDLE_SECONDS = 5.0
JOIN_SECONDS = 1.0
# A lease is renewed after a third of its time, so two renewals may fail.
RENEWALS = 3


class Renewal:
    __slots__ = ("due", "is_held", "item", "lease_ms", "queue", "ref", "timeout_error", "until")

    def __init__(
        self,
        message: LeasedMessage,
        lease_ms: int,
        until: float,
        timeout_error: str | None = None,
        *,
        is_held: bool = False,
    ) -> None:
        self.ref = weakref.ref(message)
        self.queue = message.queue
        self.item: SettleItem = message.item()
        self.lease_ms = lease_ms
        self.until = until
        self.timeout_error = timeout_error
        # True if the message was leased ahead, and is released at `until` instead of renewed.
        self.is_held = is_held
        self.due = self.next_due(time.monotonic())

    def next_due(self, now: float) -> float:
        return self.until if self.is_held else min(now + self.lease_ms / 1000 / RENEWALS, self.until)


class LeaseRenewer:
    def __init__(self, transport: StoreTransport | HttpTransport) -> None:
        self._transport = transport
        self.after_fork_in_child()
        fork_safety.register_reset(self)

    def after_fork_in_child(self) -> None:
        self._renewals: dict[tuple[int, str], Renewal] = {}
        self._mutex = Mutex()
        self._slot = OneShotEvent()
        self._wakes_at = 0.0
        self._closed = False
        self._background: BackgroundTasks | None = None

    def keep(self, message: LeasedMessage, lease_ms: int, seconds_max: float, timeout_error: str | None = None) -> bool:
        """Extend the message's lease until it is settled, dropped, or `seconds_max` have passed.

        With `timeout_error`, the message is then nacked with this text. Returns False if the lease is already lost.
        """
        return self._add(Renewal(message, lease_ms, time.monotonic() + seconds_max, timeout_error), message)

    def hold(self, message: LeasedMessage, lease_ms: int, seconds: float) -> None:
        """Release a message that was leased ahead, unless `keep` is called for it in time."""
        self._add(Renewal(message, lease_ms, time.monotonic() + seconds, is_held=True), message)

    def _add(self, renewal: Renewal, message: LeasedMessage) -> bool:
        with self._mutex:
            if message.lost:
                return False
            if self._closed:
                return True
            self._renewals[message.id, message.token] = renewal
            if self._background is None or not self._background.running:
                self._wakes_at = renewal.due
                self._background = BackgroundTasks(self._run, "penstock-lease-renewer")
            elif renewal.due < self._wakes_at:
                self._slot.set()
        return True

    def end(self, message: LeasedMessage) -> None:
        """Mark the message as settled and stop renewing its lease."""
        message.settled = True
        self.forget(message)

    def forget(self, message: LeasedMessage) -> None:
        if self._renewals:
            with self._mutex:
                self._renewals.pop((message.id, message.token), None)

    def stop(self) -> None:
        """Stop all renewals. A request in flight goes on until the transport is closed."""
        with self._mutex:
            self._closed = True
            self._renewals.clear()
        self._slot.set()

    def join(self) -> None:
        """Wait for the background task after the transport is closed; it may sleep before it notices."""
        background = self._background
        if background is not None:
            background.cancel()
            background.join(JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            with self._mutex:
                due = [renewal for renewal in self._renewals.values() if renewal.due <= now]
            if due:
                self._renew(due, now)
            now = time.monotonic()
            with self._mutex:
                idle = not self._renewals
                if self._closed or (idle and self._wakes_at < now):
                    self._background = None
                    return
                self._wakes_at = now + IDLE_SECONDS if idle else min(renewal.due for renewal in self._renewals.values())
            self._slot.wait(self._wakes_at - now)

    def _renew(self, due: list[Renewal], now: float) -> None:
        groups: dict[tuple[str, int], list[Renewal]] = {}
        held: dict[str, list[SettleItem]] = {}
        for renewal in due:
            message = renewal.ref()
            if message is None or message.settled or message.lost:
                self._drop(renewal, message)
            elif renewal.is_held:
                if self._withdraw(renewal, message):
                    held.setdefault(renewal.queue, []).append(renewal.item)
            elif renewal.until <= now:
                self._give_up(renewal, message)
            else:
                groups.setdefault((renewal.queue, renewal.lease_ms), []).append(renewal)
            del message
        for (queue, lease_ms), group in groups.items():
            self._extend(queue, lease_ms, group)
        for queue, items in held.items():
            self._release(queue, items)

    def _withdraw(self, renewal: Renewal, message: LeasedMessage) -> bool:
        """Take a held message away from its consumer, unless the consumer has just started it."""
        with self._mutex:
            key = (renewal.item.id, str(renewal.item.token))
            if self._renewals.get(key) is not renewal:
                return False
            del self._renewals[key]
            message.lost = True
            return True

    def _release(self, queue: str, items: list[SettleItem]) -> None:
        try:
            self._transport.settle("release", queue, items, retry_for=JOIN_SECONDS)
        except PenstockError as error:
            if not self._closed:
                log.warning("cannot release %d messages of %r: %s", len(items), queue, error)

    def _extend(self, queue: str, lease_ms: int, group: list[Renewal]) -> None:
        try:
            results = self._transport.settle(
                "extend",
                queue,
                [renewal.item for renewal in group],
                lease_ms=lease_ms,
                retry_for=lease_ms / 1000 / RENEWALS,
            )
        except PenstockError as error:
            if not self._closed:
                log.warning("cannot extend leases on %r: %s", queue, error)
            results = [Settled.OK] * len(group)
        now = time.monotonic()
        for renewal, result in zip(group, results, strict=True):
            renewal.due = renewal.next_due(now)
            message = renewal.ref()
            if result is not Settled.OK and message is not None and not message.settled:
                message.lost = True
                log.warning("the lease on message %d of %r is lost", renewal.item.id, queue)
                self._drop(renewal, message)

    def _give_up(self, renewal: Renewal, message: LeasedMessage) -> None:
        self._drop(renewal, message)
        if renewal.timeout_error is None:
            log.warning(
                "no longer extending the lease of message %d of %r: it takes too long", renewal.item.id, renewal.queue
            )
            return
        log.error("message %d of %r failed: %s", renewal.item.id, renewal.queue, renewal.timeout_error)
        try:
            message.nack(renewal.timeout_error)
        except PenstockError as error:
            log.warning("cannot nack message %d of %r: %s", renewal.item.id, renewal.queue, error)
        message.lost = True

    def _drop(self, renewal: Renewal, message: LeasedMessage | None) -> None:
        with self._mutex:
            self._renewals.pop((renewal.item.id, str(renewal.item.token)), None)
        if message is None:
            log.warning(
                "message %d of %r was neither acked nor nacked; it is redelivered when its lease expires",
                renewal.item.id,
                renewal.queue,
            )
