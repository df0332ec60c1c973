"""Appends that have a key: sent again, they answer what the first did."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from penstock.errors import Conflict
from penstock.log.model import Appended

REMEMBER_SECONDS = 15 * 60.0
REMEMBER_MAX = 200_000
Append = Callable[[], Awaitable[Appended]]


class KeyReused(Conflict):
    code = "key_reused"

    def __init__(self) -> None:
        super().__init__("this key was used for an append of another size", hint="a key names one append")


class AppendedKeys:
    """By stream and key, for 15 minutes. A repeat that comes while the first is on its way waits for it."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[float, asyncio.Future[Appended]]] = OrderedDict()

    async def once(self, stream: str, key: str, count: int, append: Append) -> tuple[Appended, bool]:
        """What was appended, and whether that was earlier."""
        self._forget_old()
        known = self._known.get((stream, key))
        if known is not None:
            appended = await asyncio.shield(known[1])
            if appended.last - appended.first + 1 != count:
                raise KeyReused
            return appended, True
        # On its own, so that a client that goes away meanwhile can still ask again.
        future = asyncio.ensure_future(append())
        self._known[stream, key] = (time.monotonic() + REMEMBER_SECONDS, future)
        future.add_done_callback(lambda done: self._settle(stream, key, done))
        return await asyncio.shield(future), False

    def _settle(self, stream: str, key: str, done: asyncio.Future[Appended]) -> None:
        """What failed was not appended, so it may be tried again."""
        known = self._known.get((stream, key))
        if (done.cancelled() or done.exception() is not None) and known is not None and known[1] is done:
            del self._known[stream, key]

    def forget(self, stream: str) -> None:
        for name in [each for each in self._known if each[0] == stream]:
            del self._known[name]

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._known:
            expires, future = next(iter(self._known.values()))
            if (expires > now and len(self._known) < REMEMBER_MAX) or not future.done():
                return
            self._known.popitem(last=False)
