"""Retention: removes whole sealed segments, oldest first, that no consumer needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.log.files import typed_errors
from penstock.log.model import Archive, Consumer, SegmentInfo, StreamOptions, Trimmed
from penstock.log.recovery import remove_segment
from penstock.log.writer import Log


@dataclass(frozen=True)
class TrimRequest:
    """What to remove: everything before an offset, or what exceeds the stream's retention options."""

    before: int | None = None
    force: bool = False


def is_expired(consumer: Consumer, options: StreamOptions, now_ms: int) -> bool:
    return consumer.kind != "pipeline" and now_ms - consumer.seen_ms > options.consumer_expire_ms


def trim(
    log: Log, consumers: Iterable[Consumer], request: TrimRequest, now_ms: int, archive: Archive | None = None
) -> Trimmed:
    """Remove segments from the oldest on, up to the first that a consumer needs or that must be retained."""
    with ExitStack() as at_end:
        log.turn.acquire()
        at_end.callback(log.turn.release)
        options = log.identity.options
        _roll_if_expired(log, options, now_ms)
        need = lowest_needed(consumers, options, log.first_offset, now_ms)
        plan = TrimPlan(options, request, need, now_ms, log.last_time_ms)
        gone, held_by = plan.choose(log.segments(), archive)
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


@dataclass(frozen=True)
class TrimPlan:
    """Chooses the segments to remove."""

    options: StreamOptions
    request: TrimRequest
    need: tuple[int, str] | None
    """First offset that a consumer still needs, and the consumer's name."""
    now_ms: int
    last_time_ms: Callable[[int], int]
    """Time of the newest record of a segment, by the segment's first offset."""

    def choose(self, segments: Sequence[SegmentInfo], archive: Archive | None) -> tuple[list[SegmentInfo], str | None]:
        """Return the segments to remove, and what retains the next one."""
        left = sum(segment.bytes for segment in segments)
        gone: list[SegmentInfo] = []
        for segment in segments:
            end = segment.first + segment.records
            if not segment.sealed or not self._is_removable(segment, left):
                break
            exceeds_hold = self.options.hold_bytes is not None and left > self.options.hold_bytes
            if self.need is not None and end > self.need[0] and not self.request.force and not exceeds_hold:
                return gone, self.need[1]
            if archive is not None and not archive(segment):
                return gone, "archive"
            gone.append(segment)
            left -= segment.bytes
        return gone, None

    def _is_removable(self, segment: SegmentInfo, left: int) -> bool:
        """Return True if the request or the retention options remove this segment, of `left` bytes in total."""
        options = self.options
        if self.request.before is not None:
            return segment.first + segment.records <= self.request.before
        if options.retention_bytes is not None and left - segment.bytes >= options.retention_bytes:
            return True
        if options.retention_ms is None:
            return False
        return self.last_time_ms(segment.first) < self.now_ms - options.retention_ms


def lowest_needed(
    consumers: Iterable[Consumer], options: StreamOptions, first: int, now_ms: int
) -> tuple[int, str] | None:
    """Return the lowest offset that an unexpired consumer still needs, and its name."""
    needs = (
        ((each.offset + 1 if each.offset is not None else first), each.name)
        for each in consumers
        if not is_expired(each, options, now_ms)
    )
    return min(needs, default=None)


def _roll_if_expired(log: Log, options: StreamOptions, now_ms: int) -> None:
    """Seal an idle active segment, because only sealed segments can be removed."""
    active = log.active
    if options.retention_ms is not None and active.count and active.last_time_ms < now_ms - options.retention_ms:
        log.roll()
