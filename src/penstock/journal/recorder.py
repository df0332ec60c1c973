"""Collects the events of one transaction and merges similar ones into one record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.journal.events import EVENTS_MAX, SHARED_BYTES_MAX, Columns, Kind, Row, columns_of, encode_events

# Kind, queue id, flags, and True if there are details and bodies.
Likeness = tuple[int, int, int, bool, bool]
# Limit of bodies kept in memory for deferred events.
WAIT_BYTES_MAX = 256 << 10
# A message passes these in this order, so records of different messages can be reordered like this.
FREQUENT = (Kind.PUSHED, Kind.LEASED, Kind.ACKED)


WAITING = (Kind.PUSHED, Kind.LEASED)


class Named(Protocol):
    """The properties of a queue that the journal needs."""

    id: int
    name_bytes: bytes


class _Group:
    __slots__ = ("_lists", "bodies", "columns", "count", "details", "name", "size")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.count = 0
        self.columns: Columns = ()
        self.details: list[bytes] = []
        self.bodies: list[bytes] = []
        self.size = 0
        # Grown columns, by number: callers may still hold the original ones.
        self._lists: dict[int, list[int]] = {}

    def add(self, count: int, columns: Columns) -> None:
        if not self.count:
            self.columns = columns
        else:
            self.columns = [
                ours if number and isinstance(ours, int) and ours == new else self._grown(number, ours, new, count)
                for number, (ours, new) in enumerate(zip(self.columns, columns, strict=True))
            ]
        self.count += count

    def _grown(self, number: int, ours: int | Sequence[int], new: int | Sequence[int], count: int) -> Sequence[int]:
        if isinstance(ours, range) and isinstance(new, range) and ours.stop == new.start:
            return range(ours.start, new.stop)
        grown = self._lists.get(number)
        if grown is None:
            grown = self._lists[number] = [ours] * self.count if isinstance(ours, int) else list(ours)
        grown += [new] * count if isinstance(new, int) else new
        return grown


class Recorder:
    __slots__ = ("_groups", "_rare", "_records", "_size", "_store_id", "_tells_of", "now")

    def __init__(self, store_id: int) -> None:
        self.now = 0
        self._store_id = store_id
        self._records: list[bytes] = []
        self._groups: dict[Likeness, _Group] = {}
        # True if the current events are of another kind, which keeps its position among all others.
        self._rare = False
        self._size = 0
        # The queue of all collected events if they are only pushes and leases; else -1, or 0.
        self._tells_of = 0

    def note(
        self,
        kind: int,
        queue: Named,
        rows: Sequence[Row],
        marks: int = 0,
        details: Sequence[bytes] | None = None,
        bodies: Sequence[bytes] | None = None,
    ) -> None:
        """Add one row per message, with details and bodies at the same index, if any."""
        self.note_columns(kind, queue, len(rows), columns_of(rows), marks, details, bodies)

    def note_columns(
        self,
        kind: int,
        queue: Named,
        count: int,
        columns: Columns,
        marks: int = 0,
        details: Sequence[bytes] | None = None,
        bodies: Sequence[bytes] | None = None,
    ) -> None:
        """Add events whose equal columns are known, which saves building and transposing rows."""
        size = 0 if bodies is None else sum(map(len, bodies))
        if (size > SHARED_BYTES_MAX or count > EVENTS_MAX) and count > 1:
            self._note_in_halves(kind, queue, count, columns, marks, details, bodies)
            return
        likeness = (kind, queue.id, marks, details is not None, bodies is not None)
        group = self._groups.get(likeness)
        if group is None or group.size + size > SHARED_BYTES_MAX or group.count + count > EVENTS_MAX:
            rare = kind not in FREQUENT
            if group is not None or rare or self._rare:
                self._flush()
            self._rare = rare
            group = self._groups[likeness] = _Group(queue.name_bytes)
            can_wait = kind in WAITING and self._tells_of in (0, queue.id)
            self._tells_of = queue.id if can_wait else -1
        group.add(count, columns)
        group.size += size
        self._size += size
        if details is not None:
            group.details += details
        if bodies is not None:
            group.bodies += bodies

    def _note_in_halves(
        self,
        kind: int,
        queue: Named,
        count: int,
        columns: Columns,
        marks: int,
        details: Sequence[bytes] | None,
        bodies: Sequence[bytes] | None,
    ) -> None:
        half = count // 2
        for part in (slice(0, half), slice(half, count)):
            self.note_columns(
                kind,
                queue,
                part.stop - part.start,
                [each if isinstance(each, int) else each[part] for each in columns],
                marks,
                None if details is None else details[part],
                None if bodies is None else bodies[part],
            )

    def _flush(self) -> None:
        for likeness in sorted(self._groups):
            kind, queue_id, marks, with_details, with_bodies = likeness
            group = self._groups[likeness]
            details = group.details if with_details else None
            bodies = group.bodies if with_bodies else None
            head = (kind, self.now, queue_id, group.name, self._store_id)
            self._records.append(encode_events(*head, group.count, group.columns, marks, details, bodies))
        self._forget_groups()

    def _forget_groups(self) -> None:
        self._groups = {}
        self._size = self._tells_of = 0

    def __bool__(self) -> bool:
        """Return True if there are events."""
        return bool(self._groups or self._records)

    def can_wait(self, queue_id: int, more_bytes: int = 0) -> bool:
        """Return True if all events are pushes to and leases from this queue, and not too many."""
        return not self._records and self._tells_of in (0, queue_id) and self._size + more_bytes <= WAIT_BYTES_MAX

    def mark(self) -> int:
        """Return a savepoint for `roll_back_to`."""
        self._flush()
        return len(self._records)

    def roll_back_to(self, mark: int) -> None:
        self._forget_groups()
        del self._records[mark:]

    def take(self) -> list[bytes]:
        """Return all records since the last call."""
        self._flush()
        records, self._records = self._records, []
        return records
