"""The journal of a file or a database, read directly."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from penstock.cli.output import Data, plain
from penstock.errors import CannotOpen
from penstock.journal.drainer import drain_once, journal_folder
from penstock.journal.reader import EARLIEST, Journal, JournalReader
from penstock.store.factory import POSTGRES, open_streams
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.probe import check_penstock_database, keeps_journal
from penstock.wire.journal import EventPage, event_view

WATCH_SECONDS = 0.2


class LocalJournal:
    def __init__(self, where: str) -> None:
        self._at_end = ExitStack()
        # Reads drain the journal first: no server may be running to do it.
        self._reader, self._drain = self._open_tables(where) if where.startswith(POSTGRES) else self._open_file(where)

    def _open_file(self, where: str) -> tuple[Journal, Callable[[], None]]:
        if not Path(where).exists():
            raise CannotOpen(f"{where} does not exist")
        check_penstock_database(Path(where))
        store = SqliteStore(where)
        self._at_end.callback(store.close)
        if not keeps_journal(Path(where)) and not journal_folder(where).exists():
            self.close()
            raise CannotOpen(
                f"{where} has no journal", hint="enable it with LiteQueue(path, journal=True), or run a server"
            )
        reader = JournalReader(journal_folder(where))
        self._at_end.callback(reader.close)
        return reader, lambda: drain_once(store, store.path)

    def _open_tables(self, where: str) -> tuple[Journal, Callable[[], None]]:
        streams = open_streams(where)
        self._at_end.callback(streams.close)
        from penstock.journal.postgres import PostgresDrain, PostgresJournal
        from penstock.log.postgres.streams import PostgresStreams

        assert isinstance(streams, PostgresStreams)
        return PostgresJournal(streams.database), PostgresDrain(streams.database).drain

    def show(self) -> Data:
        self._drain()
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
            self._drain()
            page = self._reader.read(offset, limit=limit, queue=queue, kinds=None if kind is None else kind.split(","))
            if page.events or page.next > max(offset, 0) or time.monotonic() >= deadline:
                return plain(EventPage([event_view(event) for event in page.events], page.next))
            time.sleep(WATCH_SECONDS)

    def close(self) -> None:
        self._at_end.close()
