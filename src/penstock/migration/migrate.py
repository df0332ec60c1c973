"""Migrates a store in bounded steps, with progress saved in the target, and compares both at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.core.model import Clock, Progress, system_clock
from penstock.errors import InvalidInput, MissingExtra, MoveDiffers, SourceChanged, TargetNotEmpty
from penstock.migration.streams import StreamsMigrated, compare_streams, copy_streams
from penstock.migration.tables import (
    STEP_QUEUES,
    STEP_ROWS,
    TABLES,
    CounterHistory,
    MigratedTable,
    StoreEndpoint,
    TargetEndpoint,
)
from penstock.store.common import GAUGES
from penstock.store.factory import POSTGRES
from penstock.store.sqlite.connection import MEMORY

SQLITE = "sqlite:///"
DB_NAME = "penstock.db"
MINUTES_KEPT = 30 * 24 * 60
BOOKS = "books"


class QueueMigrated(Struct, frozen=True, kw_only=True):
    name: str
    ready: int
    scheduled: int
    leased: int
    dead: int
    archived: int


class Migrated(Struct, frozen=True, kw_only=True):
    source: str
    target: str
    queues: list[QueueMigrated]
    messages: int
    checksum: str
    """Digest over every row, equal in both stores."""
    streams: int
    records: int
    streams_checksum: str
    """Digest over every record, equal in both stores."""
    resumed: bool
    left_behind: dict[str, int]
    """What stays in the source: records of the journal, and streams with `leave_streams`."""


def migrate(
    source: str,
    target: str,
    *,
    leave_streams: bool = False,
    progress: Progress | None = None,
    step_rows: int = STEP_ROWS,
    clock: Clock = system_clock,
) -> Migrated:
    """Migrate all queues and streams to an empty store, or continue an unfinished migration from the same source. With
    `leave_streams`, migrate only the queues."""
    if source.startswith(POSTGRES) == target.startswith(POSTGRES):
        raise InvalidInput(
            "a move is from a SQLite file to PostgreSQL, or back",
            hint="a file is copied by `penstock backup`, a database by pg_dump",
        )
    for where in (source, target):
        name = where.removeprefix(SQLITE)
        if not name or name == MEMORY or ("://" in name and not name.startswith(POSTGRES)):
            raise InvalidInput(f"{where!r} is no file and no database", hint="give a path, or postgresql://…")
    with ExitStack() as stack:
        origin = stack.enter_context(closing(_open(source, source=True)))
        goal: TargetEndpoint = stack.enter_context(closing(_open(target, source=False)))
        return _Migration(origin, goal, progress, step_rows, clock, leave_streams).run()


def _open(where: str, *, source: bool) -> Any:
    if where.startswith(POSTGRES):
        try:
            from penstock.migration.postgres import PostgresEndpoint
        except ImportError:
            raise MissingExtra("postgres") from None
        return PostgresEndpoint(where, source=source)
    from penstock.migration.sqlite import SqliteEndpoint

    path = Path(where.removeprefix(SQLITE))
    return SqliteEndpoint(path / DB_NAME if path.is_dir() else path, source=source)


class _Migration:
    def __init__(
        self,
        source: StoreEndpoint,
        target: TargetEndpoint,
        progress: Progress | None,
        step_rows: int,
        clock: Clock,
        leave_streams: bool,
    ) -> None:
        self._source = source
        self._with_streams = not leave_streams
        self._streams = source.streams.streams()
        self._target = target
        self._progress: Callable[[int, int], None] = progress or (lambda done, total: None)
        self._step_rows = step_rows
        self._kept_from = clock() // 60_000 - MINUTES_KEPT
        self._done = 0
        self._sizes = {table.name: source.size(table) for table in TABLES}
        # Everything is copied once and read in both stores for the comparison; histories weigh as much as queues.
        records = sum(stream.next - stream.first for stream in self._streams) if self._with_streams else 0
        self._total = 3 * (sum(self._sizes.values()) + self._sizes["queue"] + records)

    def run(self) -> Migrated:
        notes = self._begin()
        resumed = len(notes) > 1
        for table in TABLES:
            self._copy(table, notes)
        self._copy_books(notes)
        source, target = self._source, self._target
        if self._with_streams:
            copy_streams(source.streams, target.streams, target.step, self._advance)
        checksum = self._compare()
        queues = self._compare_counts()
        streams = StreamsMigrated(0, 0, "")
        if self._with_streams:
            names = (source.shown, target.shown)
            streams = compare_streams(source.streams, target.streams, names, self._advance)
        with self._target.step():
            self._target.finish(self._source.store_id, self._source.last_id())
        return Migrated(
            source=self._source.shown,
            target=self._target.shown,
            queues=queues,
            messages=self._sizes["message"],
            checksum=checksum,
            streams=streams.streams,
            records=streams.records,
            streams_checksum=streams.checksum,
            resumed=resumed,
            left_behind=self._left_behind(),
        )

    def _left_behind(self) -> dict[str, int]:
        left = {name: count for name, count in self._source.left_behind().items() if count}
        if self._streams and not self._with_streams:
            left["streams"] = len(self._streams)
        return left

    def _begin(self) -> dict[str, str]:
        """Return the progress of an earlier attempt, after checking that source and target are the same."""
        source, target = self._source, self._target
        identity = f"{source.store_id} {source.last_id()} {self._digest(source)}"
        notes = target.notes()
        if notes is None:
            if not target.is_empty() or (self._with_streams and target.streams.streams()):
                raise TargetNotEmpty(target.shown)
            notes = {"source": identity}
            with target.step():
                target.begin()
                target.note("source", identity)
        elif notes["source"].split()[0] != str(source.store_id):
            raise TargetNotEmpty(target.shown)
        elif notes["source"] != identity:
            raise SourceChanged(source.shown)
        return notes

    def _digest(self, side: StoreEndpoint) -> str:
        """Return a digest of queues and counters, which nearly every write changes; the final comparison covers all."""
        digest = hashlib.blake2b(digest_size=16)
        for row in _rows(side, TABLES[0], self._step_rows):
            digest.update(msgspec.msgpack.encode(row))
        for book in _books(side):
            digest.update(msgspec.msgpack.encode(book[:8]))
        if self._with_streams:
            digest.update(msgspec.msgpack.encode(self._streams))
        return digest.hexdigest()

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._total), self._total)

    def _copy(self, table: MigratedTable, notes: dict[str, str]) -> None:
        after, copied = _position(notes.get(table.name))
        self._advance(copied)
        while rows := self._source.rows(table, after, self._step_rows):
            after = rows[-1][: len(table.key)]
            copied += len(rows)
            with self._target.step():
                self._target.write(table, rows)
                self._target.note(table.name, msgspec.json.encode((after, copied)).decode())
            self._advance(len(rows))

    def _copy_books(self, notes: dict[str, str]) -> None:
        after, copied = _position(notes.get(BOOKS))
        self._advance(copied)
        last = after[0] if after else 0
        last_id = self._source.last_id()
        while books := self._source.books(last, STEP_QUEUES):
            last = books[-1].queue_id
            copied += len(books)
            with self._target.step():
                self._target.write_books(books, self._kept_from, last_id)
                self._target.note(BOOKS, msgspec.json.encode(((last,), copied)).decode())
            self._advance(len(books))

    def _compare(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for table in TABLES:
            one, other = (self._checksum(side, table) for side in (self._source, self._target))
            self._check_same(table.name, one, other)
            whole.update(one.encode())
        return whole.hexdigest()

    def _checksum(self, side: StoreEndpoint, table: MigratedTable) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for row in _rows(side, table, self._step_rows):
            digest.update(msgspec.msgpack.encode(row))
            self._done += 1
            if not self._done % self._step_rows:
                self._advance(0)
        return digest.hexdigest()

    def _compare_counts(self) -> list[QueueMigrated]:
        """Compare counters and recounted states, queue by queue."""
        moved = []
        for one, other in zip(_books(self._source), _books(self._target), strict=True):
            self._check_same(f"the counters of {one.name}", one, other)
            counted = self._source.recount(one)
            self._check_same(f"the states of {one.name}", counted, self._target.recount(other))
            moved.append(QueueMigrated(name=one.name, **{gauge: counted[gauge] for gauge in GAUGES}))
            self._advance(2)
        return sorted(moved, key=lambda queue: queue.name)

    def _check_same(self, what: str, one: object, other: object) -> None:
        if one != other:
            raise MoveDiffers(self._source.shown, self._target.shown, what)


def _position(note: str | None) -> tuple[tuple[Any, ...] | None, int]:
    """Key of the last copied row, and the number of copied rows."""
    if note is None:
        return None, 0
    after, copied = msgspec.json.decode(note)
    return tuple(after), copied


def _rows(side: StoreEndpoint, table: MigratedTable, step_rows: int) -> Iterator[tuple[Any, ...]]:
    after = None
    while rows := side.rows(table, after, step_rows):
        after = rows[-1][: len(table.key)]
        yield from rows


def _books(side: StoreEndpoint) -> Iterator[CounterHistory]:
    last = 0
    while books := side.books(last, STEP_QUEUES):
        last = books[-1].queue_id
        yield from books
