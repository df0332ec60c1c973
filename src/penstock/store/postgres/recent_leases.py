"""Remembers the leases that this process granted, so that their acks need not read them.

The database verifies what is remembered: another process may have settled a part of a lease.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.core.commands import Ack

MESSAGES_MAX = 100_000


class RangePart(NamedTuple):
    """Messages of one range of leases that a batch ends, and the range as it was before."""

    queue_id: int
    leased_until: int
    first_id: int
    last_id: int
    size: int
    """Number of messages that it leases."""
    token: bytes
    leased_at: int
    worker: str | None
    ids: list[int]
    pushed: list[int]
    """When each message was pushed."""

    @property
    def is_whole(self) -> bool:
        return len(self.ids) == self.size


class RecentLease(NamedTuple):
    """A granted range, and the push times of those of its messages that are still leased."""

    queue: str
    queue_id: int
    leased_until: int
    first_id: int
    last_id: int
    token: bytes
    leased_at: int
    pushed: dict[int, int]


class RecentLeases:
    """The newest leases by token. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[str, RecentLease] = {}
        self._messages = 0

    def add(self, leases: Iterable[RecentLease]) -> None:
        with self._lock:
            for lease in leases:
                self._leases[lease.token.hex()] = lease
                self._messages += len(lease.pushed)
            while self._messages > MESSAGES_MAX:
                self._drop(next(iter(self._leases)))

    def _drop(self, token: str) -> None:
        lease = self._leases.pop(token, None)
        if lease is not None:
            self._messages -= len(lease.pushed)

    def forget(self, tokens: Iterable[str]) -> None:
        """Forget leases that were settled another way, and may have changed."""
        with self._lock:
            for token in tokens:
                self._drop(token)

    def settled(self, parts: Iterable[RangePart]) -> None:
        """Forget messages that were acknowledged."""
        with self._lock:
            for part in parts:
                token = part.token.hex()
                lease = self._leases.get(token)
                if lease is None:
                    continue
                for message_id in part.ids:
                    if lease.pushed.pop(message_id, None) is not None:
                        self._messages -= 1
                if not lease.pushed:
                    del self._leases[token]

    def parts(self, commands: Sequence[Ack], now: int) -> list[RangePart] | None:
        """Return what these acks end, or None if one of the messages is not known or given twice."""
        wanted: dict[tuple[str, str], list[int]] = {}
        for command in commands:
            for item in command.items:
                if item.token is None:
                    return None
                wanted.setdefault((command.queue, item.token), []).append(item.id)
        with self._lock:
            parts = [self._part(queue, token, ids, now) for (queue, token), ids in wanted.items()]
        return None if None in parts else parts  # type: ignore[return-value]

    def _part(self, queue: str, token: str, ids: list[int], now: int) -> RangePart | None:
        lease = self._leases.get(token)
        if lease is None or lease.queue != queue or lease.leased_until <= now or len(set(ids)) < len(ids):
            return None
        pushed = lease.pushed
        try:
            times = [pushed[message_id] for message_id in ids]
        except KeyError:
            return None
        key = lease.queue_id, lease.leased_until, lease.first_id, lease.last_id
        return RangePart(*key, len(pushed), lease.token, lease.leased_at, None, ids, times)
