"""A digest of the last second's events, computed once for all dashboards and sent as one message.

It decodes only the head of each journal record, so its cost depends on the number of records, each of which may cover a
thousand messages, and not on the number of dashboards.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from penstock.broker.broker import Broker
from penstock.errors import PenstockError
from penstock.journal.events import Kind, head_of
from penstock.journal.reader import Journal, events_of
from penstock.log.model import LogRecord

DIGEST_SECONDS = 1.0
DIGEST_SECONDS_MAX = 4.0
# The pause is at least this multiple of the last digest's time, so a busy server sends fewer digests.
DIGEST_TIMES = 40
# A page reloaded within this time resumes where it was, without a gap.
RESUME_SECONDS = 10.0
# Digests kept for dashboards that connect later.
HISTORY = 300
RECORDS_MAX = 10_000
# Journal bytes read for one digest; the rest is skipped and counted in `skipped`.
BYTES_MAX = 8 << 20
# Queues per digest, the busiest first; the others follow in later digests.
QUEUES_MAX = 50
LATEST_MAX = 12
WAITING_MAX = 8
_encode = msgspec.json.Encoder().encode


class Activity(Struct):
    """Counts of message events."""

    pushed: int = 0
    leased: int = 0
    acked: int = 0
    nacked: int = 0
    lapsed: int = 0
    dead: int = 0
    expired: int = 0
    redriven: int = 0
    removed: int = 0


class QueueActivity(Struct, omit_defaults=True):
    at: int
    kind: str
    queue: str
    """The queue, or the worker that joined or left."""
    count: int = 1
    id: int | None = None
    uuid: str | None = None
    error: str | None = None


class QueueChange(Struct):
    """The current state of a queue that had events."""

    name: str
    paused: bool
    ready: int
    scheduled: int
    leased: int
    dead: int
    archived: int


class ActivityDigest(Struct):
    at: int
    totals: Activity
    queues: list[QueueChange]
    gone: list[str]
    latest: list[QueueActivity]
    skipped: int = 0
    """Records that were skipped because there were too many."""


class ActivityFeed:
    """Reads the journal while dashboards are connected."""

    def __init__(self, broker: Broker, reader: Journal) -> None:
        self._broker = broker
        self._reader = reader
        self._watchers: list[deque[bytes]] = []
        self._due: Counter[str] = Counter()
        self._running: asyncio.Task[None] | None = None
        self._published = asyncio.Event()
        self._offset: int | None = None
        self._left_at = -math.inf
        self.history: deque[tuple[int, Activity]] = deque(maxlen=HISTORY)
        self._since = 0

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def join(self) -> deque[bytes]:
        """Return a queue of digests that begins with the history."""
        frames: deque[bytes] = deque(maxlen=WAITING_MAX)
        if self._running is None or self._running.done():
            if time.monotonic() - self._left_at > RESUME_SECONDS:
                # Nothing was counted while no dashboard was connected; the gap would look like no traffic.
                self.history.clear()
                self._since = self._broker.store.clock()
                self._offset = None
            self._running = asyncio.create_task(self._run())
        points = [(at, *msgspec.structs.astuple(activity)) for at, activity in self.history]
        data = {"since": self._since, "fields": Activity.__struct_fields__, "points": points}
        frames.append(_encode({"event": "history", "data": data}))
        self._watchers.append(frames)
        return frames

    def leave(self, frames: deque[bytes]) -> None:
        self._watchers = [each for each in self._watchers if each is not frames]
        if not self._watchers and self._running is not None:
            self._running.cancel()
            self._running = None
            self._left_at = time.monotonic()

    async def wait(self, seconds: float) -> None:
        """Wait for the next digest."""
        try:
            async with asyncio.timeout(seconds):
                await self._published.wait()
        except TimeoutError:
            pass

    async def _run(self) -> None:
        await self._begin()
        took = 0.0
        while True:
            await asyncio.sleep(min(max(DIGEST_SECONDS, DIGEST_TIMES * took), DIGEST_SECONDS_MAX))
            began = time.perf_counter()
            try:
                digest = await self._digest()
            except PenstockError:
                # The store or the journal is unavailable; regular requests report the error.
                continue
            finally:
                took = time.perf_counter() - began
            if digest is not None:
                self.history.append((digest.at, digest.totals))
                frame = _encode({"event": "digest", "data": digest})
                for frames in self._watchers:
                    frames.append(frame)
                self._published.set()
                self._published = asyncio.Event()

    async def _begin(self) -> None:
        """Start at the journal's end, once it is available; after a reload, where the last one stopped."""
        while self._offset is None:
            try:
                self._offset = await asyncio.to_thread(self._reader.next_offset)
            except PenstockError:
                await asyncio.sleep(DIGEST_SECONDS)

    async def _digest(self) -> ActivityDigest | None:
        records, skipped = await asyncio.to_thread(self._read)
        totals, latest = Activity(), await asyncio.to_thread(_latest, records[-LATEST_MAX:])
        for record in records:
            queue, count = head_of(record.data)
            if record.kind != Kind.WORKER:
                self._due[queue] += count
            name = _NAMES.get(record.kind)
            if name is not None:
                setattr(totals, name, getattr(totals, name) + count)
        if not records and not self._due:
            return None
        queues, gone = await self._counters()
        return ActivityDigest(self._broker.store.clock(), totals, queues, gone, latest, skipped)

    def _read(self) -> tuple[list[LogRecord], int]:
        assert self._offset is not None
        page = self._reader.records(self._offset, limit=RECORDS_MAX, bytes_max=BYTES_MAX)
        end = self._reader.next_offset()
        # A page may end at a segment boundary, and the next digest reads newer records: skip only a large backlog.
        skipped = end - page.next if end - page.next > RECORDS_MAX else 0
        self._offset = page.next + skipped
        return page.records, skipped

    async def _counters(self) -> tuple[list[QueueChange], list[str]]:
        found: list[QueueChange] = []
        gone: list[str] = []
        for name, _ in self._due.most_common(QUEUES_MAX):
            del self._due[name]
            info = await self._broker.find_queue(name)
            if info is None:
                gone.append(name)
            else:
                found.append(
                    QueueChange(name, info.paused, info.ready, info.scheduled, info.leased, info.dead, info.archived)
                )
        return found, gone


_NAMES: dict[int, str] = {
    kind.value: kind.name.lower() for kind in Kind if kind.name.lower() in Activity.__struct_fields__
}


def _latest(records: Sequence[LogRecord]) -> list[QueueActivity]:
    """Return one line per record, newest first, however many messages it covers."""
    return [_line(record) for record in reversed(records)]


def _line(record: LogRecord) -> QueueActivity:
    event = next(iter(events_of([record], None, None)))
    count = head_of(record.data)[1]
    details: dict[str, Any] = event.details
    kind = f"{event.kind} {details.get('what', 'changed')}" if event.kind in ("queue", "worker") else event.kind
    only = count == 1
    error = str(details["error"])[:200] if "error" in details else None
    name = details["worker"] if event.kind == "worker" else event.queue
    return QueueActivity(event.at, kind, name, count, event.id if only else None, event.uuid if only else None, error)
