"""The stream tables of PostgreSQL as source or target of a migration. A row is a batch of encoded records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from secrets import randbits
from typing import Any

from penstock.core.options import encode_options
from penstock.errors import Damaged
from penstock.log.model import Consumer, decode_stream_options
from penstock.log.postgres.rows import Row, cut
from penstock.log.record import time_at
from penstock.migration.streams import Chunk, MigratedStream

# Rows read at once; each is 64 KiB or one record.
BATCHES = 64
# The names of the journal and of streams being removed begin with a character that is invalid in names.
USERS = "name ~ '^[A-Za-z0-9._-]'"

Ask = Callable[..., list[tuple[Any, ...]]]


class PostgresStreamSide:
    def __init__(self, ask: Ask, run: Callable[..., None]) -> None:
        """Use the endpoint's statement functions; writes happen within its steps."""
        self._ask = ask
        self._run = run

    def streams(self) -> list[MigratedStream]:
        rows = self._ask(
            f"SELECT name, options, created_at, first, next FROM penstock.stream_state WHERE {USERS} ORDER BY name"
        )
        return [
            MigratedStream(
                name=name, options=decode_stream_options(options), created_ms=created_ms, first=first, next=following
            )
            for name, options, created_ms, first, following in rows
        ]

    def _id(self, stream: MigratedStream) -> int:
        return int(self._ask("SELECT id FROM penstock.stream WHERE name = %s", stream.name)[0][0])

    def chunks(self, stream: MigratedStream, offset: int) -> Iterator[Chunk]:
        stream_id = self._id(stream)
        sql = (
            "SELECT last, records, sum, ends, data FROM penstock.batch"
            " WHERE stream_id = %s AND last >= %s ORDER BY last LIMIT %s"
        )
        while offset < stream.next:
            for found in self._ask(sql, stream_id, offset, BATCHES):
                row = Row._make(found)
                for _ in row.read(stream.name, offset):
                    pass  # Reading verifies each record.
                places = row.places()[max(0, offset - row.first) :]
                yield Chunk(max(offset, row.first), row.data[places[0] :], [end - at for at, end in pairwise(places)])
                offset = row.last + 1

    def consumers(self, stream: MigratedStream) -> list[Consumer]:
        rows = self._ask(
            "SELECT name, position, seen_at, created_at, kind FROM penstock.consumer"
            " WHERE stream_id = %s ORDER BY name",
            self._id(stream),
        )
        return [
            Consumer(name=name, offset=offset, seen_ms=seen_ms, created_ms=created_ms, kind=kind)
            for name, offset, seen_ms, created_ms, kind in rows
        ]

    def add_stream(self, stream: MigratedStream) -> None:
        self._run(
            "INSERT INTO penstock.stream (name, options, segment_bytes, record_bytes, created_at, first)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            stream.name,
            encode_options(stream.options),
            stream.options.segment_bytes,
            stream.options.record_bytes,
            stream.created_ms,
            stream.first,
        )

    def append(self, stream: MigratedStream, chunk: Chunk) -> None:
        """Write records like an append, but keep their times."""
        stream_id = self._id(stream)
        ((place, active, filled, time_ms),) = self._ask(
            "SELECT next, active, filled, time_ms FROM penstock.stream_state WHERE id = %s", stream_id
        )
        if place != chunk.first:
            raise Damaged(
                f"records {place} to {chunk.first - 1} of stream {stream.name!r} are gone",
                hint="mark them as lost with `penstock stream repair`, then run the command again",
            )
        mark = randbits(62)
        for row in cut(chunk.data, chunk.sizes):
            if active is not None and filled + len(row.data) > stream.options.segment_bytes:
                self._run(
                    "INSERT INTO penstock.segment VALUES (%s, %s, %s, %s, %s)",
                    *(stream_id, active, place - 1, filled, time_ms),
                )
                active = None
            if active is None:
                active, filled = place, 0
            filled += len(row.data)
            place += row.records
            places = Row(place - 1, *row).places()
            time_ms = time_at(row.data, places[-2])
            self._run(
                "INSERT INTO penstock.batch VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                *(stream_id, place - 1, row.records, time_ms, active, filled, mark, row.sum, row.ends, row.data),
            )

    def set_consumers(self, stream: MigratedStream, consumers: Sequence[Consumer]) -> None:
        stream_id = self._id(stream)
        self._run("DELETE FROM penstock.consumer WHERE stream_id = %s", stream_id)
        for each in consumers:
            self._run(
                "INSERT INTO penstock.consumer VALUES (%s, %s, %s, %s, %s, %s)",
                *(stream_id, each.name, each.kind, each.offset, each.seen_ms, each.created_ms),
            )
