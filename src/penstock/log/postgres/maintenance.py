"""Maintenance of streams: retention, check and repair."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.model import Progress
from penstock.errors import UnknownStream
from penstock.log.check_report import DamageKind, Finding, Report
from penstock.log.model import Archive, Consumer, SegmentInfo, StreamOptions, Trimmed
from penstock.log.postgres.database import Database
from penstock.log.postgres.rows import Row, pack_ends
from penstock.log.record import LOST, crc32, kind_at, tombstones
from penstock.log.retention import TrimPlan, TrimRequest, lowest_needed

# Batches removed per transaction, so that none takes long.
REMOVE_ROWS = 500
CHECK_ROWS = 100


def segments(database: Database, name: str) -> tuple[list[SegmentInfo], dict[int, int]]:
    """Return the segments, oldest first, and the times of their newest records."""
    shown, sealed = database.transact(
        [database.statement("stream.show", name), database.statement("stream.segments", name)]
    )
    if not shown:
        raise UnknownStream(name)
    _, _, _, _, _, next_offset, active, filled, time_ms, *_ = shown[0]
    found = [
        SegmentInfo(first=first, records=last - first + 1, bytes=size, sealed=True) for first, last, size, _ in sealed
    ]
    times = {first: at for first, _, _, at in sealed}
    start = next_offset if active is None else active
    times[start] = time_ms
    return [*found, SegmentInfo(first=start, records=next_offset - start, bytes=filled, sealed=False)], times


class Upkeep:
    def __init__(self, database: Database) -> None:
        self._database = database

    def trim(
        self,
        name: str,
        consumers: list[Consumer],
        options: StreamOptions,
        now_ms: int,
        request: TrimRequest,
        archive: Archive | None,
    ) -> Trimmed:
        database = self._database
        stream_id = self._find(name)
        if options.retention_ms is not None:
            self._under_lock(stream_id, ("stream.seal", stream_id, now_ms - options.retention_ms))
        found, times = segments(database, name)
        first = found[0].first
        need = lowest_needed(consumers, options, first, now_ms)
        gone, held_by = TrimPlan(options, request, need, now_ms, times.__getitem__).choose(found, archive)
        if gone:
            first = gone[-1].first + gone[-1].records
            self._under_lock(stream_id, ("stream.forget_before", stream_id, first))
            # Readers already see the new start. The next trim removes what a crash leaves behind.
            self._remove(stream_id, first)
        self.empty_trash()
        return Trimmed(
            first=first,
            removed_records=sum(segment.records for segment in gone),
            removed_bytes=sum(segment.bytes for segment in gone),
            removed_segments=len(gone),
            held_by=held_by,
        )

    def _find(self, name: str) -> int:
        rows = self._database.ask("stream.find", name)
        if not rows:
            raise UnknownStream(name)
        stream_id: int = rows[0][0]
        return stream_id

    def _under_lock(self, stream_id: int, *asked: tuple[str, *tuple[int, ...]]) -> None:
        database = self._database
        lock = database.statement("stream.lock", database.lock_key(stream_id))
        database.transact([lock, *(database.statement(name, *params) for name, *params in asked)])

    def _remove(self, stream_id: int, before: int) -> None:
        while len(self._database.ask("stream.remove", stream_id, before, REMOVE_ROWS)) == REMOVE_ROWS:
            pass
        self._database.ask("stream.remove_segments", stream_id, before)

    def empty_trash(self) -> None:
        """Remove the records of dropped streams."""
        while rows := self._database.ask("stream.dropped"):
            ((stream_id, next_offset),) = rows
            self._remove(stream_id, next_offset)
            self._database.ask("stream.remove_stream", stream_id)

    def drop(self, name: str) -> None:
        stream_id = self._find(name)
        self._under_lock(stream_id, ("stream.drop", stream_id))
        self.empty_trash()

    def check(self, name: str, progress: Progress | None, *, repair: bool) -> Report:
        """Verify the checksum of every record. With `repair`, replace damaged records by markers."""
        shown = self._database.ask("stream.show", name)
        if not shown:
            raise UnknownStream(name)
        stream_id, _, _, _, first, next_offset, *_, sealed, _, _ = shown[0]
        report = Report(stream=name, first=first, next=next_offset, segments=sealed + 1, findings=[])
        at = first
        for row in self._rows(stream_id, first):
            if row.first > at:
                self._gap(stream_id, row, at, report, repair=repair)
            self._look_at(stream_id, row, report, repair=repair)
            at = row.last + 1
            report.records += row.records
            report.bytes += len(row.data)
            if progress is not None:
                progress(at - first, next_offset - first)
        return report

    def _rows(self, stream_id: int, first: int) -> Iterator[Row]:
        while rows := self._database.ask("stream.check", stream_id, first, CHECK_ROWS):
            for row in rows:
                yield Row(*row[:5])
            first = rows[-1][0] + 1

    def _look_at(self, stream_id: int, row: Row, report: Report, *, repair: bool) -> None:
        bad = row.damaged()
        places = row.places()
        given_up = [
            number
            for number in range(min(row.records, len(places) - 1))
            if number not in bad and kind_at(row.data, places[number]) == LOST
        ]
        for number in given_up:
            report.findings.append(_finding(DamageKind.GIVEN_UP, "given up by an earlier repair", row, number))
        if bad and repair:
            self._database.ask("stream.replace_damaged", stream_id, row.last, *with_lost_markers(row, bad))
        for number in bad:
            report.findings.append(_finding(DamageKind.CORRUPT, "not what was written", row, number, repaired=repair))

    def _gap(self, stream_id: int, row: Row, at: int, report: Report, *, repair: bool) -> None:
        missing = row.first - at
        finding = Finding(
            trouble=DamageKind.LOST, text=f"{missing} records are gone", first=at, last=row.first - 1, repaired=repair
        )
        report.findings.append(finding)
        if repair:
            data, ends = tombstones(missing, missing * 24)
            self._database.ask(
                "stream.fill_gap", stream_id, row.last, row.first - 1, missing, crc32(data), pack_ends(ends), data
            )


def _finding(trouble: DamageKind, what: str, row: Row, number: int, *, repaired: bool = False) -> Finding:
    offset = row.first + number
    return Finding(
        trouble=trouble,
        text=f"record {offset} is {what}",
        segment=row.where,
        first=offset,
        last=offset,
        repaired=repaired,
    )


def with_lost_markers(row: Row, bad: list[int]) -> tuple[int, bytes, bytes]:
    """Return the row with markers instead of damaged records, or instead of all if their positions are unknown."""
    places = row.places()
    fits = len(places) == row.records + 1 and places == sorted(places) and places[-1] <= len(row.data)
    if not fits or any(places[number + 1] - places[number] < 24 for number in bad):
        data, ends = tombstones(row.records, max(len(row.data), row.records * 24))
        return crc32(data), pack_ends(ends), data
    parts = bytearray(row.data[: places[-1]])
    for number in bad:
        size = places[number + 1] - places[number]
        parts[places[number] : places[number + 1]] = tombstones(1, size)[0]
    return crc32(bytes(parts)), pack_ends(places[1:]), bytes(parts)
