"""Appends that have a key: sent again, they answer what the first did.

Keys are remembered for a while. So that they outlive the server, the first record of such an append carries a hash of
its key; what a new server finds by that hash, with the same content, is the same append.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

import msgspec

from penstock.errors import Conflict, CorruptRecord
from penstock.log.model import READ_RECORDS_MAX, Appended, NewRecord, Payload
from penstock.log.protocol import Streams
from penstock.model import Clock
from penstock.server.tails import Call

REMEMBER_SECONDS = 15 * 60.0
REMEMBER_MAX = 200_000
RECALL_RECORDS = 100_000
RECALL_BYTES = 64 << 20
Append = Callable[[Sequence[Payload]], Awaitable[Appended]]


class KeyReused(Conflict):
    code = "key_reused"

    def __init__(self) -> None:
        super().__init__("this key was used for an append of another size", hint="a key names one append")


class Once:
    """An append with a key, done or on its way."""

    def __init__(self, count: int, doing: asyncio.Future[tuple[Appended, bool]]) -> None:
        self.count = count
        self.doing = doing
        self.expires = time.monotonic() + REMEMBER_SECONDS


class AppendedKeys:
    """By stream and key. A repeat that comes while the first is on its way waits for it."""

    def __init__(self, streams: Streams, call: Call, clock: Clock) -> None:
        self._streams = streams
        self._call = call
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], Once] = OrderedDict()
        self._recalled: dict[str, asyncio.Future[dict[int, int]]] = {}
        self._recall_until = time.monotonic() + REMEMBER_SECONDS

    async def append(self, stream: str, key: str, payloads: Sequence[Payload], append: Append) -> tuple[Appended, bool]:
        """What was appended, and whether that was earlier."""
        self._forget_old()
        known = self._known.get((stream, key))
        if known is not None:
            if known.count != len(payloads):
                raise KeyReused
            return (await asyncio.shield(known.doing))[0], True
        # On its own, so that a client that goes away meanwhile can still ask again.
        doing = asyncio.ensure_future(self._append(stream, key, payloads, append))
        self._known[stream, key] = Once(len(payloads), doing)
        doing.add_done_callback(lambda done: self._settle(stream, key, done))
        return await asyncio.shield(doing)

    async def _append(
        self, stream: str, key: str, payloads: Sequence[Payload], append: Append
    ) -> tuple[Appended, bool]:
        tag = crc32(key.encode()) or 1
        tagged = [_tagged(payloads[0], tag), *payloads[1:]]
        first = (await self._recall(stream)).get(tag)
        if first is None:
            return await append(tagged), False
        there = await self._call(lambda: _same(self._streams, stream, first, payloads))
        if not there:
            return await append(tagged), False
        if there < len(payloads):
            # A power cut took the rest of it.
            rest = await append(payloads[there:])
            return Appended(first, rest.last, rest.time_ms), False
        return Appended(first, first + there - 1, 0), True

    async def _recall(self, stream: str) -> dict[int, int]:
        """Tags of what was appended before this server began, with their offsets."""
        if time.monotonic() > self._recall_until:
            self._recalled.clear()
            return {}
        recalling = self._recalled.get(stream)
        if recalling is None or (recalling.done() and recalling.exception() is not None):
            since_ms = self._clock() - round(REMEMBER_SECONDS * 1000)
            recalling = asyncio.ensure_future(self._call(lambda: _tags(self._streams, stream, since_ms)))
            self._recalled[stream] = recalling
        return await asyncio.shield(recalling)

    def _settle(self, stream: str, key: str, done: asyncio.Future[tuple[Appended, bool]]) -> None:
        """What failed was not appended, so it may be tried again."""
        known = self._known.get((stream, key))
        if (done.cancelled() or done.exception() is not None) and known is not None and known.doing is done:
            del self._known[stream, key]

    def forget(self, stream: str) -> None:
        self._recalled.pop(stream, None)
        for name in [each for each in self._known if each[0] == stream]:
            del self._known[name]

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._known:
            oldest = next(iter(self._known.values()))
            if (oldest.expires > now and len(self._known) < REMEMBER_MAX) or not oldest.doing.done():
                return
            self._known.popitem(last=False)


def _tagged(payload: Payload, tag: int) -> NewRecord:
    if isinstance(payload, bytes):
        return NewRecord(payload, tag=tag)
    return msgspec.structs.replace(payload, tag=tag)


def _tags(streams: Streams, name: str, since_ms: int) -> dict[int, int]:
    """Of the newest records, as far back as that time, or as many as can be looked at in a moment."""
    info = streams.show(name)
    records = info.next - info.first
    fitting = records if info.bytes <= RECALL_BYTES else max(1, records * RECALL_BYTES // info.bytes)
    at = info.next - min(RECALL_RECORDS, fitting)
    tags: dict[int, int] = {}
    while at < info.next:
        try:
            page = streams.read(name, at, limit=READ_RECORDS_MAX)
        except CorruptRecord as error:
            at = error.offset + 1
            continue
        tags |= {each.tag: each.offset for each in page.records if each.tag and each.time_ms >= since_ms}
        at = page.next
    return tags


def _same(streams: Streams, name: str, first: int, payloads: Sequence[Payload]) -> int:
    """How many of these are there already, one after the other."""
    there = 0
    while there < len(payloads):
        page = streams.read(name, first + there, limit=min(READ_RECORDS_MAX, len(payloads) - there))
        for record in page.records:
            payload = payloads[there]
            sent = NewRecord(payload) if isinstance(payload, bytes) else payload
            if (record.offset, record.data, record.content) != (first + there, sent.data, sent.content):
                return there
            there += 1
        if not page.records:
            break
    return there
