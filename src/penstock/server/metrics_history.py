"""Queue history over a window of time: recent minutes from the store's roll-ups, older ones from the lake.

The two meet at the cutover minute: everything before it comes from the lake alone, everything since from the roll-ups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.latency import Counts, merged
from penstock.core.model import Latencies, RollUp, Span, Totals, Window
from penstock.server.background import CANARY_QUEUE
from penstock.store.interface import Store
from penstock.store.sqlite import SqliteStore
from penstock.wire.analytics import Source
from penstock.wire.payloads import rfc3339

if TYPE_CHECKING:
    from penstock.pipeline.lake.gold_history import GoldHistory, QueueHistory
    from penstock.pipeline.lake.storage import Folder

DAY_MINUTES = 1_440
# The sweeper may delete a minute while a response is being built.
MARGIN_MINUTES = 2


def lake_folder(settings: Settings, store: Store) -> Folder:
    """Return the lake's folder: the setting, or the default of `penstock pipeline`."""
    if settings.lake is not None:
        from penstock.pipeline.lake.storage import folder_at

        return folder_at(settings.lake)
    return Path(store.path).parent / "lake" if isinstance(store, SqliteStore) else Path(settings.data, "lake")


class History:
    """Merges the roll-ups of the store with those of the lake."""

    def __init__(self, broker: Broker, *, days_kept: int, lake: Folder, uid: Callable[[], str]) -> None:
        self._broker = broker
        self._days_kept = days_kept
        self._lake = lake
        self._uid = uid
        self._past: GoldHistory | None = None

    async def source(self, window: Window | None) -> Source | None:
        if window is None or window.from_minute >= self._cutover():
            return None
        since = rfc3339(self._cutover() * 60_000)
        past = await asyncio.to_thread(self._open)
        if isinstance(past, str):
            return Source(rollups_since=since, note=past)
        until = await asyncio.to_thread(past.until)
        if until is None:
            return Source(
                rollups_since=since, note="no older history: there is no lake of this journal; run `penstock pipeline`"
            )
        until_ms = round(until.timestamp() * 1000)
        short = until_ms // 60_000 < self._cutover()
        note = "there is a gap between the end of the lake and the first roll-up" if short else None
        return Source(rollups_since=since, lake_until=rfc3339(until_ms), note=note)

    def _cutover(self) -> int:
        """Return the first minute that the roll-ups cover completely."""
        return self._broker.store.clock() // 60_000 - self._days_kept * DAY_MINUTES + MARGIN_MINUTES

    def _open(self) -> GoldHistory | str:
        """Return the lake's history, or a note why there is none."""
        if self._past is None:
            try:
                from penstock.pipeline.lake.gold_history import GoldHistory
            except ImportError:
                return "no older history: reading the lake needs the extra; pip install penstock-mq[lake]"
            uid = self._uid()
            if not uid:
                return "no older history: there is no journal"
            self._past = GoldHistory(self._lake, uid)
        return self._past

    async def _query_lake(self, window: Window, query: Callable[[GoldHistory, int], Any]) -> tuple[int, Any]:
        """Return the cutover, and what the lake has before it; None without a lake or if the window begins later."""
        cutover = self._cutover()
        if window.from_minute >= cutover:
            return cutover, None

        def run() -> Any:
            past = self._open()
            return None if isinstance(past, str) else query(past, cutover)

        return cutover, await asyncio.to_thread(run)

    async def roll_ups(self, window: Window, *, prefix: str, after: str | None, limit: int) -> list[RollUp]:
        run = partial(self._broker.roll_ups, prefix=prefix, after=after, limit=limit)
        if window.from_minute >= self._cutover():
            return await run(window)
        cutover = self._cutover()
        live = [await run(each) for each in live_windows(window, cutover)]
        names = [each.info.name for each in live[0]]
        _, past = await self._query_lake(window, lambda lake, _: lake.roll_ups(window, cutover, names))
        rest = [{each.info.name: each for each in found} for found in live[1:]]
        found = []
        for each in live[0]:
            name = each.info.name
            more = [later[name] for later in rest if name in later]
            found.append(merged_roll_up(window, (past or {}).get(name), [each, *more]))
        return found

    async def completed(self, window: Window) -> dict[int, int]:
        """Return the completed messages per step, over all queues but the canary's."""
        done = dict.fromkeys(window.starts, 0)
        cutover, past = await self._query_lake(window, lambda lake, cutover: lake.completed(window, cutover))
        windows = [window] if window.from_minute >= cutover else live_windows(window, cutover)
        for each in windows:
            async for page in self._pages(each):
                for span in (span for roll_up in page for span in roll_up.spans if span.minute < window.to_minute):
                    done[window.start_of(span.minute)] += span.happened.acked
        for step, count in (past or {}).items():
            done[step] += count
        return done

    async def _pages(self, window: Window) -> AsyncIterator[list[RollUp]]:
        after: str | None = None
        limit = self._broker.limits.page
        while True:
            found = await self._broker.roll_ups(window, after=after, limit=limit)
            yield [each for each in found if each.info.name != CANARY_QUEUE]
            if len(found) < limit:
                return
            after = found[-1].info.name

    async def latencies(self, window: Window, *, after: str | None, limit: int) -> list[Latencies]:
        run = partial(self._broker.latencies, after=after, limit=limit)
        cutover = self._cutover()
        if window.from_minute >= cutover:
            return await run(window)
        live = [await run(each) for each in live_windows(window, cutover)]
        names = [each.queue for each in live[0]]
        _, past = await self._query_lake(window, lambda lake, _: lake.latencies(window, cutover, names))
        parts: dict[str, list[dict[int, dict[int, Counts]]]] = {name: [] for name in names}
        for found in live:
            for each in found:
                for minute, kinds in each.counts.items():
                    if minute < window.to_minute and each.queue in parts:
                        parts[each.queue].append({window.start_of(minute): kinds})
        return [merged(name, [*parts[name], (past or {}).get(name, {})]) for name in names]


def live_windows(window: Window, cutover: int) -> list[Window]:
    """Return the parts of a window since the cutover; the first may be shorter than a step.

    A window that ends before the cutover becomes one minute, which has the queue depths of that time.
    """
    if cutover >= window.to_minute:
        return [Window(cutover, cutover + 1, 1)]
    head_end = min(window.to_minute, window.start_of(cutover + window.step_minutes - 1))
    found = [Window(cutover, head_end, head_end - cutover)] if cutover < head_end else []
    if head_end < window.to_minute:
        found.append(Window(head_end, window.to_minute, window.step_minutes))
    return found


def merged_roll_up(window: Window, past: QueueHistory | None, live: Sequence[RollUp]) -> RollUp:
    older = {} if past is None else past.spans
    spans = {step: span for step, span in older.items() if step < window.to_minute}
    for span in (span for each in live for span in each.spans if span.minute < window.to_minute):
        step = window.start_of(span.minute)
        earlier = spans[step].happened if step in spans else Totals()
        spans[step] = Span(step, earlier.plus(span.happened), span.depth)
    before = live[0].before if past is None else past.before
    return RollUp(live[0].info, before, [spans[step] for step in sorted(spans)])
