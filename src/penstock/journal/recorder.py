"""The events of one transaction, gathered as they happen, so that alike ones become one record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.journal.events import EVENTS_MAX, SHARED_BYTES_MAX, Columns, Kind, Row, columns_of, encode_events

# Kind, queue id, marks, and whether there are details and bodies.
Likeness = tuple[int, int, int, bool, bool]
# Of bodies, that what is told later keeps in memory.
WAIT_BYTES_MAX = 256 << 10
# A message meets these in this order. So they can be put in this order too, whichever came first for others.
FREQUENT = (Kind.PUSHED, Kind.LEASED, Kind.ACKED)


WAITING = (Kind.PUSHED, Kind.LEASED)


class Named(Protocol):
    """A queue, as far as the journal wants to know it."""

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
        # Columns that have grown, by number: those who noted the first of it may still use theirs.
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

    def _grown(self, number: int, ours: int | Sequence[int], new: int | Sequence[int], count: int) -> list[int]:
        grown = self._lists.get(number)
        if grown is None:
            grown = self._lists[number] = [ours] * self.count if isinstance(ours, int) else list(ours)
        grown += [new] * count if isinstance(new, int) else new
        return grown


class Recorder:
    __slots__ = ("_groups", "_rare", "_records", "_salt", "_size", "_tells_of", "now")

    def __init__(self, salt: int) -> None:
        self.now = 0
        self._salt = salt
        self._records: list[bytes] = []
        self._groups: dict[Likeness, _Group] = {}
        # Whether what is gathered now is of another kind, which keeps its place among all others.
        self._rare = False
        self._size = 0
        # The queue of which all that is gathered now tells, if it is of pushes and leases only; else -1, or 0.
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
        """Each row tells what happened to one message; its details and its body stand at the same place, if any."""
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
        """As `note`, where it is known what is the same for all: to make rows and to turn them costs more."""
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
            head = (kind, self.now, queue_id, group.name, self._salt)
            self._records.append(encode_events(*head, group.count, group.columns, marks, details, bodies))
        self._forget_groups()

    def _forget_groups(self) -> None:
        self._groups = {}
        self._size = self._tells_of = 0

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self._groups or self._records)

    def can_wait(self, queue_id: int, more_bytes: int = 0) -> bool:
        """Whether all there is to tell, if anything, are pushes to and leases from this queue, and not too much."""
        return not self._records and self._tells_of in (0, queue_id) and self._size + more_bytes <= WAIT_BYTES_MAX

    def mark(self) -> int:
        """How far it has come, to go back to."""
        self._flush()
        return len(self._records)

    def go_back(self, mark: int) -> None:
        self._forget_groups()
        del self._records[mark:]

    def take(self) -> list[bytes]:
        """All records since the last time."""
        self._flush()
        records, self._records = self._records, []
        return records
