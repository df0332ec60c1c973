"""The journal of a file, read straight from its folder."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from penstock.cli.backend import Data
from penstock.errors import CannotOpen
from penstock.journal.drain import drain_once, journal_folder
from penstock.journal.reading import EARLIEST, JournalReader
from penstock.server.faces.journal import event_view
from penstock.store.sqlite import SqliteStore

WATCH_SECONDS = 0.2


class LocalJournal:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise CannotOpen(f"there is no file {path}")
        self._store = SqliteStore(path)
        self._reader = JournalReader(journal_folder(path))

    def show(self) -> Data:
        drain_once(self._store, self._store.path)
        reader = self._reader
        segments = reader.segments()
        consumers = [{"consumer": each.name, "offset": each.offset, "lag": each.lag} for each in reader.consumers()]
        return {
            "first": reader.first_offset,
            "next": reader.next_offset(),
            "bytes": sum(segment.bytes for segment in segments),
            "segments": len(segments),
            "consumers": consumers,
        }

    def events(self, start: int | None, *, limit: int, wait_ms: int, queue: str | None, kind: str | None) -> Data:
        deadline = time.monotonic() + wait_ms / 1000
        offset = EARLIEST if start is None else start
        while True:
            # Nobody else may be there to do it.
            drain_once(self._store, self._store.path)
            page = self._reader.read(offset, limit=limit, queue=queue, kinds=None if kind is None else kind.split(","))
            if page.events or page.next > max(offset, 0) or time.monotonic() >= deadline:
                views = [event_view(event) for event in page.events]
                found: Data = msgspec.json.decode(msgspec.json.encode({"events": views, "next": page.next}))
                return found
            time.sleep(WATCH_SECONDS)

    def close(self) -> None:
        self._reader.close()
        self._store.close()
