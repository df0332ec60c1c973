"""What is removed, and for whom it waits: whole sealed segments, oldest first."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.log.files import typed_errors
from penstock.log.log import Log
from penstock.log.model import Archive, Consumer, SegmentInfo, StreamOptions, Trimmed
from penstock.log.recovery import remove_segment


@dataclass(frozen=True)
class Wish:
    """What may go: all before an offset, or what the stream's options no longer keep."""

    before: int | None = None
    force: bool = False


def expired(consumer: Consumer, options: StreamOptions, now_ms: int) -> bool:
    return consumer.kind != "pipeline" and now_ms - consumer.seen_ms > options.consumer_expire_ms


def trim(log: Log, consumers: Iterable[Consumer], wish: Wish, now_ms: int, archive: Archive | None = None) -> Trimmed:
    """Remove segments from the oldest on, up to the first that someone needs or that is wished to be kept."""
    with ExitStack() as at_end:
        log.turn.acquire()
        at_end.callback(log.turn.release)
        options = log.identity.options
        _roll_if_outlived(log, options, now_ms)
        needs = sorted(
            ((each.offset + 1 if each.offset is not None else log.first_offset), each.name)
            for each in consumers
            if not expired(each, options, now_ms)
        )
        gone, held_by = _choose(log, wish, needs[0] if needs else None, now_ms, archive)
        first = gone[-1].first + gone[-1].records if gone else log.first_offset
        if gone:
            log.forget_before(first, len(gone))
            with typed_errors(f"trimming stream {log.name!r}"):
                for segment in gone:
                    remove_segment(log.files, log.folder, segment.first)
    return Trimmed(
        first=first,
        removed_records=sum(segment.records for segment in gone),
        removed_bytes=sum(segment.bytes for segment in gone),
        removed_segments=len(gone),
        held_by=held_by,
    )


def _choose(
    log: Log, wish: Wish, need: tuple[int, str] | None, now_ms: int, archive: Archive | None
) -> tuple[list[SegmentInfo], str | None]:
    options = log.identity.options
    segments = log.segments()
    left = sum(segment.bytes for segment in segments)
    gone: list[SegmentInfo] = []
    for segment in segments:
        end = segment.first + segment.records
        if not segment.sealed or not _unwanted(log, segment, wish, left, options, now_ms):
            break
        over = options.hold_bytes is not None and left > options.hold_bytes
        if need is not None and end > need[0] and not wish.force and not over:
            return gone, need[1]
        if archive is not None and not archive(segment):
            return gone, "archive"
        gone.append(segment)
        left -= segment.bytes
    return gone, None


def _unwanted(log: Log, segment: SegmentInfo, wish: Wish, left: int, options: StreamOptions, now_ms: int) -> bool:
    if wish.before is not None:
        return segment.first + segment.records <= wish.before
    if options.retention_bytes is not None and left - segment.bytes >= options.retention_bytes:
        return True
    return options.retention_ms is not None and log.last_time_ms(segment.first) < now_ms - options.retention_ms


def _roll_if_outlived(log: Log, options: StreamOptions, now_ms: int) -> None:
    """Only sealed segments go, so one in which nothing happens any more is sealed."""
    active = log.active
    if options.retention_ms is not None and active.count and active.last_time_ms < now_ms - options.retention_ms:
        log.roll()
