"""Decodes events to Arrow without a loop over records: each field is gathered from all records at once.

Needs NumPy and PyArrow. `events.py` describes the bytes; here its fields are words of eight bytes at fixed places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.ids import STORE_ID_BITS
from penstock.journal.events import BODIES, COLUMNS, CONTENTS, DETAILS, FIELD_BYTES, Kind
from penstock.log.arrow import Piece, mapped
from penstock.log.reader import LogReader
from penstock.log.record import HEADER_BYTES, LOST

Ints = np.ndarray[Any, np.dtype[np.int64]]

TIME = pa.timestamp("us", tz="UTC")


def columns(*described: tuple[str, pa.DataType] | tuple[str, pa.DataType, str]) -> pa.Schema:
    """Return a schema of columns, given with or without a comment, which readers of Delta tables show."""
    fields = ((name, kind, comment[0] if comment else "") for name, kind, *comment in described)
    return pa.schema(
        [pa.field(name, kind, metadata={"comment": comment} if comment else None) for name, kind, comment in fields]
    )


SCHEMA = columns(
    ("offset", pa.int64(), "of the journal's record"),
    ("number", pa.int32(), "within the record"),
    ("at", TIME, "when it was committed"),
    ("kind", pa.string()),
    ("queue", pa.string()),
    ("queue_id", pa.int64()),
    ("id", pa.int64(), "null for what happened to a queue"),
    ("uuid", pa.string()),
    ("pushed_at", TIME),
    ("first_leased_at", TIME),
    ("leased_at", TIME),
    ("until", TIME, "of a lease: its end; of a push or nack: when it is due"),
    ("attempts", pa.int32(), "deliveries so far"),
    ("priority", pa.int32()),
    ("marks", pa.int32(), "a sum of flags"),
    ("details", pa.string(), "JSON: errors, reasons, who asked, options"),
    ("content", pa.string(), "what the body is: bytes, text, json"),
    ("body", pa.binary(), "of a push, unless the queue keeps bodies out of the journal"),
)

BATCH_EVENTS = 32 << 10
_WORD = 8
_COLUMNS_AT = (HEADER_BYTES + 24) // _WORD
_ARRAYS_AT = (HEADER_BYTES + FIELD_BYTES) // _WORD
_KINDS = (None, *(kind.name.lower() for kind in Kind))
_CONTENTS = tuple(str(content) for content in CONTENTS)
_BITS_SET: Ints = np.array([number.bit_count() for number in range(256)], dtype=np.int64)


@cache
def _texts(of: tuple[str | None, ...]) -> pa.Array:
    """Build the tables on first use, because Arrow loads pandas to convert a list."""
    return pa.array(of)


def events_table(
    buffer: memoryview | bytes, ends: Sequence[int] | Ints, first_offset: int, columns: Sequence[str] = SCHEMA.names
) -> pa.Table:
    """Decode verified records that lie back to back in `buffer` and end at `ends`."""
    records = _Records(buffer, np.asarray(ends, dtype=np.int64), first_offset)
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    arrays = [records.column(name).cast(schema.field(name).type) for name in columns]
    return pa.Table.from_arrays(arrays, schema=schema)


def batches(log: LogReader, offset: int, end: int | None, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the events of a log from one offset up to another; every record is verified."""
    yield from batches_of(mapped(log, offset, end), columns)


def batches_of(pieces: Iterable[Piece], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the events of these records in batches of whole records."""
    for piece in pieces:
        for first, last in _runs(piece):
            low, high = int(piece.ends[first]), int(piece.ends[last])
            ends = piece.ends[first + 1 : last + 1] - low
            yield from events_table(piece.view[low:high], ends, piece.first + first, columns).to_batches()


def _runs(piece: Piece) -> Iterator[tuple[int, int]]:
    """Yield runs of intact records with few enough events for one batch."""
    kept = piece.kept()
    counts = np.zeros(len(piece), dtype=np.int64)
    # A marker of a lost record may be too short to have a count.
    counts[slice(None) if kept is None else kept] = piece.gather(HEADER_BYTES, "<u4", kept)
    # A new run starts when a batch is full, and on both sides of a marker.
    before = np.cumsum(counts) - counts
    group = before // BATCH_EVENTS
    breaks = np.diff(group) != 0
    if kept is not None:
        breaks |= np.diff(kept.astype(np.int8)) != 0
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(counts)]
    for first, last in pairwise(cuts):
        if kept is None or kept[first]:
            yield first, last


class _Records:
    """Decoder of one run. `starts` and derived positions count 8-byte words, to which records are aligned."""

    def __init__(self, buffer: memoryview | bytes, ends: Ints, first_offset: int) -> None:
        buffer = memoryview(buffer)[: int(ends[-1]) if len(ends) else 0]
        self._buffer = buffer
        self._words = np.frombuffer(buffer, dtype="<i8")
        self._halves = np.frombuffer(buffer, dtype="<u4")
        starts: Ints = np.concatenate([[0], ends[:-1]])[: len(ends)] // _WORD
        # A marker of a lost record has no events and is too short for any field.
        kept = self._words[starts + 2] & 0xFF != LOST
        self._starts: Ints = starts[kept]
        self._offsets: Ints = np.arange(first_offset, first_offset + len(ends))[kept]
        self._count = self._field(3) & 0xFFFF_FFFF
        self._varies = self._field(4) >> 48 & 0xFFFF
        # Record number of each event.
        self._of = np.repeat(np.arange(len(self._starts)), self._count)
        self._number = np.arange(len(self._of)) - (np.cumsum(self._count) - self._count)[self._of]

    def _field(self, word: int) -> Ints:
        values: Ints = self._words[self._starts + word]
        return values

    def _values(self, column: int) -> Ints:
        """Return a column that may vary within a record, one value per event."""
        values: Ints = self._field(_COLUMNS_AT + column)[self._of]
        if column == 0:
            values += self._number
        varying = self._varies[self._of] >> column & 1 == 1
        if varying.any():
            before = self._count * _BITS_SET[self._varies & (1 << column) - 1]
            arrays = self._starts + _ARRAYS_AT + before
            values[varying] = self._words[arrays[self._of[varying]] + self._number[varying]]
        return values

    @cached_property
    def _detail_ends_at(self) -> Ints:
        arrays: Ints = _BITS_SET[self._varies & 0xFF]
        return self._starts + _ARRAYS_AT + self._count * arrays

    @cached_property
    def _body_ends_at(self) -> Ints:
        return self._detail_ends_at + np.where(self._varies & DETAILS, (self._count + 1) // 2, 0)

    @cached_property
    def _name_at(self) -> Ints:
        """Positions of the names in bytes; all following positions are in bytes, too."""
        return (self._body_ends_at + np.where(self._varies & BODIES, (self._count + 1) // 2, 0)) * _WORD

    @cached_property
    def _details_at(self) -> Ints:
        return self._name_at + (self._field(5) & 0xFFFF)

    @cached_property
    def _bodies_at(self) -> Ints:
        return self._details_at + (self._field(5) >> 32)

    def _parts(self, has_ends: Ints, ends_at: Ints, starts: Ints) -> pa.BinaryArray:
        """Return the variable-length part of each event; null if its record has none."""
        of, number = self._of, self._number
        there = has_ends[of] != 0
        ends, begins = starts[of], starts[of]
        places = 2 * ends_at[of[there]] + number[there]
        ends[there] += self._halves[places]
        begins[there] += np.where(number[there] == 0, 0, self._halves[places - (number[there] > 0)])
        return self._slices(begins, ends, ~there)

    def _slices(self, begins: Ints, ends: Ints, nulls: np.ndarray[Any, Any] | None = None) -> pa.BinaryArray:
        """Slice ascending ranges as every second element of an array of ranges and gaps."""
        bounds = np.empty(2 * len(begins) + 1, dtype=np.int32)
        bounds[0:-1:2], bounds[1::2] = begins, ends
        bounds[-1] = ends[-1] if len(ends) else 0
        both = pa.BinaryArray.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._buffer)]
        )
        found = both.take(pa.array(np.arange(0, len(bounds) - 1, 2)))
        if nulls is None:
            return found
        # This copies nothing.
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        return pa.BinaryArray.from_buffers(pa.binary(), len(found), [valid, *found.buffers()[1:]])

    def column(self, name: str) -> pa.Array:
        found: pa.Array = _GATHER[name](self)
        return found

    def offset(self) -> pa.Array:
        return pa.array(self._offsets[self._of])

    def number(self) -> pa.Array:
        return pa.array(self._number)

    def at(self) -> pa.Array:
        times = self._field(1)[self._of]
        for kind, column in ((Kind.PUSHED, "pushed_at"), (Kind.LEASED, "leased_at")):
            # These may be recorded later than they happen.
            times = np.where(self._kinds == kind, self._values(COLUMNS.index(column)), times)
        return _times(times)

    def kind(self) -> pa.Array:
        return _texts(_KINDS).take(pa.array(self._kinds))

    @property
    def _kinds(self) -> Ints:
        return (self._field(2) & 0xFF)[self._of]

    def queue(self) -> pa.Array:
        return self._slices(self._name_at, self._details_at).take(pa.array(self._of))

    def queue_id(self) -> pa.Array:
        return pa.array((self._field(3) >> 32)[self._of])

    def marks(self) -> pa.Array:
        return pa.array((self._field(4) >> 32 & 0xFFFF)[self._of])

    def id(self) -> pa.Array:
        return _known(self._values(0))

    def uuid(self) -> pa.Array:
        store_id = (self._field(4) & 0xFFFF_FFFF)[self._of]
        ids = self._values(0)
        return pc.if_else(pa.array(ids != 0), _uuids(ids, self._values(1), store_id), None)

    def details(self) -> pa.Array:
        own = self._varies & DETAILS
        each = self._parts(own, self._detail_ends_at, self._details_at)
        shared = self._slices(self._details_at, np.where(own, self._details_at, self._bodies_at))
        both = pc.if_else(pa.array(own[self._of] != 0), each, shared.take(pa.array(self._of)))
        return pc.if_else(pc.greater(pc.binary_length(both), 0), both, None)

    def content(self) -> pa.Array:
        found = _texts(_CONTENTS).take(pa.array(self._values(7)))
        return pc.if_else(pa.array(self._kinds == Kind.PUSHED), found, None)

    def body(self) -> pa.Array:
        return self._parts(self._varies & BODIES, self._body_ends_at, self._bodies_at)


def _time_of(column: int) -> Any:
    return lambda records: _times(records._values(column))


def _number_of(column: int) -> Any:
    return lambda records: pa.array(records._values(column))


_GATHER: dict[str, Any] = {
    **{name: getattr(_Records, name, None) for name in SCHEMA.names},
    **{name: _time_of(COLUMNS.index(name)) for name in ("pushed_at", "first_leased_at", "leased_at", "until")},
    **{name: _number_of(COLUMNS.index(name)) for name in ("attempts", "priority")},
}


def _known(values: Ints) -> pa.Array:
    """Convert zeros to nulls."""
    return pa.array(values, mask=values == 0)


def _times(values_ms: Ints) -> pa.Array:
    return _known(values_ms * 1000).cast(TIME)


_HEX = np.frombuffer(b"".join(b"%02x" % number for number in range(256)), dtype=np.uint16)


def _uuids(ids: Ints, created_at: Ints, store_id: Ints) -> pa.Array:
    """Vectorized `ids.message_uuid`."""
    count = len(ids)
    high = created_at << 16 | 0x7000 | ids >> 32 & 0xFFF
    low = (ids & 0xFFFF_FFFF) << STORE_ID_BITS | store_id
    words = np.empty((count, 2), dtype=">u8")
    words[:, 0] = high.astype(np.uint64)
    words[:, 1] = low.astype(np.uint64) | np.uint64(1 << 63)
    digits = _HEX[words.view(np.uint8).reshape(count, 16)].view(np.uint8).reshape(count, 32)
    text = np.full((count, 36), ord("-"), dtype=np.uint8)
    for start, end, at in ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24)):
        text[:, at : at + end - start] = digits[:, start:end]
    bounds = np.arange(0, 36 * count + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(text))
