"""Deduplicates appends by idempotency key: a repeated append returns the outcome of the first.

Keys are kept in memory for 15 minutes. To survive a restart, the first record of such an append carries a hash of its
key; a new server that finds this hash with the same content treats it as the same append.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from penstock.core.model import Clock
from penstock.errors import Conflict
from penstock.log.append_dedup import find, same, tag_of, tagged, tags_from
from penstock.log.interface import Streams
from penstock.log.model import AppendOutcome, Payload
from penstock.server.log_waiters import WaitCall

REMEMBER_SECONDS = 15 * 60.0
REMEMBER_MAX = 200_000
RECALL_RECORDS = 100_000
RECALL_BYTES = 64 << 20
Append = Callable[[Sequence[Payload]], Awaitable[AppendOutcome]]


class KeyReused(Conflict):
    code = "key_reused"

    def __init__(self) -> None:
        super().__init__("this key was used for an append of another size", hint="use a new key for each append")


class FirstAppend:
    """The first append with a key: its outcome, or the task that does it. Slots keep it small: there are many."""

    __slots__ = ("count", "expires", "outcome")

    def __init__(self, count: int, doing: asyncio.Future[tuple[AppendOutcome, bool]]) -> None:
        self.count = count
        self.outcome: AppendOutcome | asyncio.Future[tuple[AppendOutcome, bool]] = doing
        self.expires = time.monotonic() + REMEMBER_SECONDS


class AppendDeduplicator:
    """Deduplicates by stream and key. A repeat that arrives while the first is running waits for it."""

    def __init__(self, streams: Streams, call: WaitCall, clock: Clock) -> None:
        self._streams = streams
        self._call = call
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], FirstAppend] = OrderedDict()
        self._recalled: dict[str, asyncio.Future[dict[int, int]]] = {}
        self._recall_until = time.monotonic() + REMEMBER_SECONDS

    async def append(
        self, stream: str, key: str, payloads: Sequence[Payload], append: Append, since: int | None = None
    ) -> tuple[AppendOutcome, bool]:
        """Append once. Return the outcome, and True if an earlier append (remembered, or after `since`) was it."""
        self._forget_old()
        known = self._known.get((stream, key))
        if known is not None:
            if known.count != len(payloads):
                raise KeyReused
            outcome = known.outcome
            return outcome if isinstance(outcome, AppendOutcome) else (await asyncio.shield(outcome))[0], True
        # A task of its own, so that a client that disconnects meanwhile can still repeat the request.
        doing = asyncio.ensure_future(self._append(stream, key, payloads, append, since))
        self._known[stream, key] = FirstAppend(len(payloads), doing)
        doing.add_done_callback(lambda done: self._settle(stream, key, done))
        return await asyncio.shield(doing)

    async def _append(
        self, stream: str, key: str, payloads: Sequence[Payload], append: Append, since: int | None
    ) -> tuple[AppendOutcome, bool]:
        found = await self._find(stream, key, payloads, since)
        if found is None:
            return await append(tagged(payloads, tag_of(key))), False
        first, there = found
        if there < len(payloads):
            # A power failure lost the rest of it.
            rest = await append(payloads[there:])
            return AppendOutcome(first, rest.last, rest.time_ms), False
        return AppendOutcome(first, first + there - 1, 0), True

    async def _find(
        self, stream: str, key: str, payloads: Sequence[Payload], since: int | None
    ) -> tuple[int, int] | None:
        """Return the first offset of an earlier append and how many of its records exist; None if there was none."""
        if since is not None:
            return await self._call(lambda: find(self._streams, stream, key, payloads, since))
        first = (await self._recall(stream)).get(tag_of(key))
        if first is None:
            return None
        there = await self._call(lambda: same(self._streams, stream, first, payloads))
        return (first, there) if there else None

    async def _recall(self, stream: str) -> dict[int, int]:
        """Return the offsets, by tag, of appends that happened, or may have, before this server started."""
        if time.monotonic() > self._recall_until:
            self._recalled.clear()
            return {}
        recalling = self._recalled.get(stream)
        if recalling is None or (recalling.done() and recalling.exception() is not None):
            since_ms = self._clock() - round(REMEMBER_SECONDS * 1000)
            recalling = asyncio.ensure_future(self._call(lambda: _recalled(self._streams, stream, since_ms)))
            self._recalled[stream] = recalling
        return await asyncio.shield(recalling)

    def _settle(self, stream: str, key: str, done: asyncio.Future[tuple[AppendOutcome, bool]]) -> None:
        """Forget a failed append so that it can be retried; if it may have succeeded, the retry searches the log."""
        known = self._known.get((stream, key))
        if known is None or known.outcome is not done:
            return
        if done.cancelled() or done.exception() is not None:
            del self._known[stream, key]
            if not done.cancelled() and getattr(done.exception(), "maybe_done", False):
                self._recalled.pop(stream, None)
                self._recall_until = time.monotonic() + REMEMBER_SECONDS
        else:
            known.outcome, _ = done.result()

    def forget(self, stream: str) -> None:
        self._recalled.pop(stream, None)
        for name in [each for each in self._known if each[0] == stream]:
            del self._known[name]

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._known:
            oldest = next(iter(self._known.values()))
            is_done = isinstance(oldest.outcome, AppendOutcome)
            if not is_done or (oldest.expires > now and len(self._known) < REMEMBER_MAX):
                return
            self._known.popitem(last=False)


def _recalled(streams: Streams, name: str, since_ms: int) -> dict[int, int]:
    """Return the tags of the newest records back to `since_ms`, limited to what can be read quickly."""
    info = streams.show(name)
    records = info.next - info.first
    fitting = records if info.bytes <= RECALL_BYTES else max(1, records * RECALL_BYTES // info.bytes)
    return dict(tags_from(streams, name, info.next - min(RECALL_RECORDS, fitting), since_ms))
