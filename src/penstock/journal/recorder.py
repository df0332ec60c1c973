"""The events of one transaction, gathered as they happen. Alike ones that follow each other become one record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.journal.events import EVENTS_MAX, SHARED_BYTES_MAX, Row, encode_events


class Named(Protocol):
    """A queue, as far as the journal wants to know it."""

    id: int
    name_bytes: bytes


class Recorder:
    __slots__ = ("_bodies", "_details", "_likeness", "_name", "_records", "_rows", "_salt", "_size", "now")

    def __init__(self, salt: int) -> None:
        self.now = 0
        self._salt = salt
        self._records: list[bytes] = []
        self._rows: list[Row] = []
        self._likeness: tuple[int, int, int, bool, bool] | None = None
        self._name = b""
        self._details: list[bytes] = []
        self._bodies: list[bytes] = []
        self._size = 0

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
        size = 0 if bodies is None else sum(map(len, bodies))
        if (size > SHARED_BYTES_MAX or len(rows) > EVENTS_MAX) and len(rows) > 1:
            self._note_in_parts(kind, queue, rows, marks, details, bodies)
            return
        likeness = (kind, queue.id, marks, details is None, bodies is None)
        if (
            likeness != self._likeness
            or self._size + size > SHARED_BYTES_MAX
            or len(self._rows) + len(rows) > EVENTS_MAX
        ):
            self._flush()
            self._likeness = likeness
            self._name = queue.name_bytes
        self._rows += rows
        self._size += size
        if details is not None:
            self._details += details
        if bodies is not None:
            self._bodies += bodies

    def _note_in_parts(
        self,
        kind: int,
        queue: Named,
        rows: Sequence[Row],
        marks: int,
        details: Sequence[bytes] | None,
        bodies: Sequence[bytes] | None,
    ) -> None:
        half = len(rows) // 2
        for part in (slice(None, half), slice(half, None)):
            self.note(
                kind,
                queue,
                rows[part],
                marks,
                None if details is None else details[part],
                None if bodies is None else bodies[part],
            )

    def _flush(self) -> None:
        if not self._rows or self._likeness is None:
            return
        kind, queue_id, marks, no_details, no_bodies = self._likeness
        self._records.append(
            encode_events(
                kind,
                self.now,
                queue_id,
                self._name,
                self._salt,
                self._rows,
                marks,
                None if no_details else self._details,
                None if no_bodies else self._bodies,
            )
        )
        self._rows, self._details, self._bodies, self._size = [], [], [], 0

    def mark(self) -> int:
        """How far it has come, to go back to."""
        self._flush()
        return len(self._records)

    def go_back(self, mark: int) -> None:
        self._rows, self._details, self._bodies, self._size = [], [], [], 0
        del self._records[mark:]

    def take(self) -> list[bytes]:
        """All records since the last time."""
        if not self._rows and not self._records:
            return []
        self._flush()
        records, self._records = self._records, []
        return records
