"""Live events of the tree API, `WS /ws/dashboard`, read from the journal.

Every dashboard reads the journal at its own pace; dashboards at the same offset share a page. So a slow one costs the
others nothing, and one that reconnects resumes where it was.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.model import QueueInfo
from penstock.errors import PenstockError
from penstock.journal.drainer import NAME
from penstock.journal.events import Event
from penstock.journal.reader import Journal
from penstock.server.api.polling import until_disconnect
from penstock.server.dashboard.activity_feed import ActivityFeed
from penstock.server.http.messages import Request, Response
from penstock.server.http.websocket import Socket, TooSlow
from penstock.server.log_waiters import LogWaiters
from penstock.server.routing import Route
from penstock.wire.http_errors import Disconnected, HttpError
from penstock.wire.payloads import TRANSACTION_ID, rfc3339

# Each record may cover a thousand messages.
PAGE_RECORDS = 20
# Limit of encoded events: a long error that a record holds once is repeated for each of its messages.
PAGE_BYTES = 4 << 20
PAGES_KEPT = 64
PAGES_BYTES_KEPT = 32 << 20
SENT_AT_ONCE = 200
NAMES_MAX = 20_000
# Queues whose depth is sent at once.
DEPTHS_MAX = 100
# Delay until a connection notices that the server stops.
CLOSING_SECONDS = 1.0
GOING_AWAY, POLICY, INTERNAL_ERROR = 1001, 1008, 1011
LAPSED = "the lease ran out"
KINDS = {
    "pushed": "message.pushed",
    "leased": "message.processing",
    "acked": "message.completed",
    "nacked": "message.failed",
    "lapsed": "message.failed",
}
_encode = msgspec.json.Encoder().encode


class DashboardQuery(Struct, forbid_unknown_fields=True):
    since: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The `offset` of the last event received; by default, start now."""
    digest: bool = False
    """Send one digest per second instead of every event."""


class LiveEvent(Struct, omit_defaults=True):
    event: str
    data: dict[str, Any]
    offset: int | None = None
    """Where to resume after a reconnect; events of the same record are repeated."""


class EventFrames(Struct):
    frames: list[bytes]
    next: int
    bytes: int


class Feed:
    """Reads the journal for all dashboards."""

    def __init__(self, reader: Journal, log_waiters: LogWaiters) -> None:
        self._reader = reader
        self.log_waiters = log_waiters
        # Queues that had events since their depths were last sent.
        self.changed: set[str] = set()
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._pages: dict[int, asyncio.Future[EventFrames]] = {}

    async def end(self) -> int:
        return await asyncio.to_thread(self._reader.next_offset)

    async def page(self, offset: int) -> EventFrames:
        """Return the page at this offset; concurrent callers share it."""
        reading = self._pages.get(offset)
        if reading is None:
            reading = self._pages[offset] = asyncio.ensure_future(asyncio.to_thread(self._read, offset))
            reading.add_done_callback(partial(self._keep, offset))
            while len(self._pages) > PAGES_KEPT:
                del self._pages[next(iter(self._pages))]
        return await asyncio.shield(reading)

    def _keep(self, offset: int, reading: asyncio.Future[EventFrames]) -> None:
        failed = reading.cancelled() or reading.exception() is not None
        if (failed or reading.result().next == offset) and self._pages.get(offset) is reading:
            del self._pages[offset]
        while len(self._pages) > 1 and sum(map(_bytes, self._pages.values())) > PAGES_BYTES_KEPT:
            del self._pages[next(iter(self._pages))]

    def _read(self, offset: int) -> EventFrames:
        with self._lock:
            page = self._reader.read(offset, limit=PAGE_RECORDS)
            frames: list[bytes] = []
            size = 0
            for offset, events in groupby(page.events, attrgetter("offset")):
                if size >= PAGE_BYTES:
                    return EventFrames(frames, offset, size)
                encoded = [_encode(each) for each in self._live_events(list(events), offset + 1)]
                size += sum(map(len, encoded))
                frames += encoded
        return EventFrames(frames, page.next, size)

    def _live_events(self, events: Sequence[Event], end: int) -> Iterator[LiveEvent]:
        for position, event in enumerate(events):
            following = events[position + 1].offset if position + 1 < len(events) else end
            if event.kind == "worker":
                data = {"workerId": event.details["worker"], "kind": event.details["role"]}
                yield LiveEvent(f"worker.{event.details['what']}", data | {"timestamp": rfc3339(event.at)}, following)
                continue
            self.changed.add(event.queue)
            if event.kind in KINDS:
                yield LiveEvent(KINDS[event.kind], self._message(event), following)
            elif event.kind == "queue" and event.details.get("what") == "created":
                *path, name = event.queue.split("/")
                ns, task = path or (None, None)
                data = {"ns": ns, "task": task, "queue": name, "timestamp": rfc3339(event.at)}
                yield LiveEvent("queue.created", data, following)

    def _message(self, event: Event) -> dict[str, Any]:
        uuid = event.uuid or ""
        if event.kind == "pushed" and (name := event.details.get("headers", {}).get(TRANSACTION_ID)):
            self._names[uuid] = name
            if len(self._names) > NAMES_MAX:
                del self._names[next(iter(self._names))]
        data: dict[str, Any] = {"queue": event.queue, "id": uuid, "transactionId": self._names.get(uuid, uuid)}
        if event.kind == "leased":
            data["workerId"] = event.details.get("worker")
        elif event.kind == "nacked":
            data["error"] = event.details.get("error", "")
        elif event.kind == "lapsed":
            data["error"] = LAPSED
        elif event.kind == "acked":
            self._names.pop(uuid, None)
        data["timestamp"] = rfc3339(event.at)
        return data


class Watcher:
    """One connected dashboard and its unsent depths."""

    def __init__(self) -> None:
        self.depths: deque[bytes] = deque(maxlen=DEPTHS_MAX)


class Dashboard:
    def __init__(self, broker: Broker, settings: Settings, reader: Journal, log_waiters: LogWaiters) -> None:
        self._broker = broker
        self._settings = settings
        self._feed = Feed(reader, log_waiters)
        self._digester = ActivityFeed(broker, reader)
        self._watchers: set[Watcher] = set()
        self._depth_task: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/ws/dashboard",
                self.follow,
                "Follow all events over a WebSocket, as {event, data}",
                "read",
                tag="tree",
                query=DashboardQuery,
                answers={101: None},
                errors=(410, 426),
                safe=False,
            )
        ]

    async def follow(self, request: Request) -> Response:
        query = request.query(DashboardQuery)
        if query.digest:
            return await self._digests(request)
        self._check_room()
        watcher = Watcher()
        self._watchers.add(watcher)
        if self._depth_task is None:
            self._depth_task = asyncio.create_task(self._broadcast_depths())
        try:
            offset = await self._feed.end() if query.since is None else query.since
            await self._feed.page(offset)
            socket = await request.exchange.upgrade(request, self._settings.ws_slow_ms / 1000)
            await self._send_events(request, socket, offset, watcher.depths)
        finally:
            self._watchers.discard(watcher)
            if not self._watchers and self._depth_task is not None:
                self._depth_task.cancel()
                self._depth_task = None
        return Response(101)

    def _check_room(self) -> None:
        if len(self._watchers) + self._digester.watchers >= self._settings.ws_connections_max:
            raise HttpError(
                429, "too_many_connections", "too many dashboards are connected", headers={"retry-after": "5"}
            )

    async def _digests(self, request: Request) -> Response:
        self._check_room()
        socket = await request.exchange.upgrade(request, self._settings.ws_slow_ms / 1000)
        frames = self._digester.join()
        beat = self._settings.ws_heartbeat_ms / 1000
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + beat
        try:
            while not self._feed.log_waiters.closed:
                if frames:
                    await socket.send([frames.popleft()])
                elif (left := beat_at - loop.time()) > 0:
                    await until_disconnect(request, self._digester.wait(min(left, CLOSING_SECONDS)))
                elif socket.ping():
                    beat_at = loop.time() + beat
                else:
                    raise Disconnected
        except TooSlow:
            await socket.close(POLICY, "too slow")
        else:
            await socket.close(GOING_AWAY, "the server stops")
        finally:
            self._digester.leave(frames)
        return Response(101)

    async def _send_events(self, request: Request, socket: Socket, offset: int, depths: deque[bytes]) -> None:
        loop, heartbeat = asyncio.get_running_loop(), self._settings.ws_heartbeat_ms / 1000
        beat_at = loop.time() + heartbeat
        log_waiters = self._feed.log_waiters
        try:
            while not log_waiters.closed:
                page = await self._feed.page(offset)
                for start in range(0, len(page.frames), SENT_AT_ONCE):
                    await socket.send(page.frames[start : start + SENT_AT_ONCE])
                while depths:
                    await socket.send([depths.popleft()])
                left = beat_at - loop.time()
                if page.next == offset and left > 0:
                    await until_disconnect(request, log_waiters.wait(NAME, offset, left))
                elif left <= 0:
                    if not socket.ping():
                        raise Disconnected
                    beat_at = loop.time() + heartbeat
                offset = page.next
        except TooSlow:
            await socket.close(POLICY, "too slow", _dropped("the client reads too slowly", offset))
        except PenstockError as error:
            await socket.close(INTERNAL_ERROR, "internal error", _dropped(str(error), offset))
        else:
            await socket.close(GOING_AWAY, "the server stops")

    async def _broadcast_depths(self) -> None:
        while True:
            await asyncio.sleep(self._settings.metrics_ms / 1000)
            changed = self._feed.changed
            names = [changed.pop() for _ in range(min(len(changed), DEPTHS_MAX))]
            for name in names:
                try:
                    info = await self._broker.find_queue(name)
                except PenstockError:
                    continue
                if info is not None:
                    frame = _encode(_depth(info, self._broker.store.clock()))
                    for watcher in self._watchers:
                        watcher.depths.append(frame)
            if names:
                self._feed.log_waiters.wake(NAME)


def _bytes(reading: asyncio.Future[EventFrames]) -> int:
    return reading.result().bytes if reading.done() and not reading.cancelled() and not reading.exception() else 0


def _depth(info: QueueInfo, now: int) -> LiveEvent:
    return LiveEvent(
        "queue.depth", {"queue": info.name, "depth": info.ready + info.scheduled, "timestamp": rfc3339(now)}
    )


def _dropped(reason: str, offset: int) -> bytes:
    return _encode(LiveEvent("dropped", {"reason": reason}, offset))
