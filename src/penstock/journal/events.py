"""Encoding of message and queue events as log records.

One record is one event of one or more messages of a queue. Values that are equal for all messages are stored once,
among the fixed fields; varying ones follow as arrays. So a lease of a hundred messages is often as short as a lease of
one, and a reader can gather each field of many records without decoding them one by one:

    header 24 | fixed fields 88 | an array of i64 for each field that varies | ends of details and of bodies, u32 each
    | name | details (JSON) | bodies | zeros up to a multiple of 8
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, IntFlag
from itertools import accumulate, chain
from typing import Any

import msgspec

from penstock.core.ids import message_uuid
from penstock.core.model import Content
from penstock.errors import Damaged
from penstock.log.record import HEADER_BYTES, crc32


class Kind(IntEnum):
    QUEUE = 1
    """A queue was created, changed, paused, resumed or removed; or it entered or left the journal with all it holds:
    see the details."""
    PUSHED = 2
    """A message was added."""
    LEASED = 3
    """It was leased to a consumer until a time."""
    EXTENDED = 4
    """Its lease was extended."""
    ACKED = 5
    """It was acknowledged as done."""
    NACKED = 6
    """The consumer failed; the message is retried after a delay."""
    LAPSED = 7
    """Its lease expired; it is ready again."""
    DEAD = 8
    """Its attempts are used up."""
    REDRIVEN = 9
    """A dead letter was moved back into its queue."""
    EXPIRED = 10
    """Its time to live passed."""
    REMOVED = 11
    """It was removed by request."""
    RELEASED = 12
    """Its lease was released without using up an attempt."""
    FORGOTTEN = 13
    """It was archived, and its retention passed."""
    WORKER = 14
    """A server or a consumer joined or left: see the details. It belongs to no queue."""


class EventFlag(IntFlag):
    KEPT = 1
    """Acked, and archived rather than deleted. Removed: it was archived."""
    GONE = 2
    """Dead, in a queue that keeps no dead letters."""
    DEAD_LETTER = 4
    """It was a dead letter that was leased, acked, released or removed."""
    LEASED = 8
    """Removed while it was leased."""


# Flag of records before the journal: its messages got their ids after it was encoded.
UNNUMBERED = 1 << 15


CONTENTS = (Content.BYTES, Content.TEXT, Content.JSON)
FIELD_BYTES = 88
# In this order; bit n of `varies` means that the n-th column is an array. A constant id counts up by one.
COLUMNS = ("id", "pushed_at", "first_leased_at", "leased_at", "until", "attempts", "priority", "content")
# More bits of `varies`: each message has details of its own; there are bodies.
DETAILS, BODIES = 1 << len(COLUMNS), 2 << len(COLUMNS)
EVENTS_MAX = 1_000
# Limits of one record; larger events are split into several records.
SHARED_BYTES_MAX = 1 << 20
# A larger body is omitted, and the details have its size.
BODY_BYTES_MAX = 8 << 20

# time, kind, flags, field bytes, zero | count, queue id, store id, marks, varies, name bytes, zero, detail bytes |
# columns
_REST = struct.Struct("<qBBHI" + "IIIHHHHI" + "8q")
_FIELDS = struct.Struct("<IIIHHHHI8q")
_HEAD = struct.Struct("<II")
_PADDING = [bytes(-length % 8) for length in range(8)]
_pack_head, _pack_rest = _HEAD.pack, _REST.pack
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode

# The values of all columns, for one message; 0 where there is none.
Row = tuple[int, int, int, int, int, int, int, int]
# The values of many messages: each column has one value for all, or one per message. Only ids may be a range.
Columns = Sequence[int | Sequence[int]]


def columns_of(rows: Sequence[Row]) -> Columns:
    return rows[0] if len(rows) == 1 else tuple(zip(*rows, strict=True))


def encode_events(
    kind: int,
    now: int,
    queue_id: int,
    name: bytes,
    store_id: int,
    count: int,
    columns: Columns,
    marks: int = 0,
    details: Sequence[bytes] | None = None,
    bodies: Sequence[bytes] | None = None,
) -> bytes:
    """Encode an event of many messages as one record with checksum."""
    firsts: list[int] = []
    varies, arrays, detail = 0, b"", b""
    for number, column in enumerate(columns):
        if isinstance(column, int):
            firsts.append(column)
            continue
        first = column[0]
        firsts.append(first)
        if isinstance(column, range):
            continue
        # Constant ids count up; any other constant is the same for all.
        alike = column.count(first) == count if number else list(column) == list(range(first, first + count))
        if not alike:
            varies |= 1 << number
            arrays += _array("q", column)
    if details is not None:
        detail = details[0]
        if count > 1 and details.count(detail) != count:
            varies |= DETAILS
            arrays += _ends(details)
            detail = b"".join(details)
    if bodies is not None:
        varies |= BODIES
        arrays += _ends(bodies)
    fixed = _pack_rest(
        now, kind, 0, FIELD_BYTES, 0, count, queue_id, store_id, marks, varies, len(name), 0, len(detail), *firsts
    )
    rest = fixed + arrays + name + detail
    if bodies is not None:
        rest = b"".join((rest, *bodies))
    rest += _PADDING[len(rest) & 7]
    length = len(rest) - (HEADER_BYTES - _HEAD.size)
    return _pack_head(length, crc32(rest, length)) + rest


def _array(code: str, values: Iterable[int]) -> bytes:
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _ends(parts: Sequence[bytes]) -> bytes:
    if len(parts) == 1:
        return struct.pack("<II", len(parts[0]), 0)
    padding = (0,) if len(parts) & 1 else ()
    return _array("I", chain(accumulate(map(len, parts)), padding))


_MARKS_AT, _VARIES_AT, _ID_AT, _ARRAYS_AT = 36, 38, 48, HEADER_BYTES + FIELD_BYTES


def number(record: bytes, first_id: int) -> bytes:
    """Return a push record with the ids of its messages; any other unchanged."""
    (marks,) = struct.unpack_from("<H", record, _MARKS_AT)
    if not marks & UNNUMBERED:
        return record
    numbered = bytearray(record)
    struct.pack_into("<H", numbered, _MARKS_AT, marks & ~UNNUMBERED)
    places = [_ID_AT]
    if struct.unpack_from("<H", record, _VARIES_AT)[0] & 1:
        (count,) = struct.unpack_from("<I", record, HEADER_BYTES)
        places += range(_ARRAYS_AT, _ARRAYS_AT + 8 * count, 8)
    for place in places:
        struct.pack_into("<q", numbered, place, struct.unpack_from("<q", record, place)[0] + first_id)
    rest = bytes(numbered[_HEAD.size :])
    length = len(record) - HEADER_BYTES
    return _pack_head(length, crc32(rest, length)) + rest


def encode_detail(**detail: Any) -> bytes:
    """Encode the details that are not None."""
    told = {name: value for name, value in detail.items() if value is not None}
    return _encode_json(told) if told else b""


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A decoded event of one message or queue. Times are in milliseconds since 1970."""

    offset: int
    """Offset of its record; `number` counts within."""
    number: int = 0
    at: int
    """Time of the event; its record may have been written later."""
    kind: str
    queue: str
    queue_id: int
    id: int | None = None
    uuid: str | None = None
    pushed_at: int | None = None
    first_leased_at: int | None = None
    leased_at: int | None = None
    until: int | None = None
    """Pushed, nacked, redriven: when it becomes ready. Leased, extended: when its lease expires."""
    attempts: int = 0
    priority: int = 0
    marks: list[str] = []
    details: dict[str, Any] = {}
    content: Content | None = None
    body: bytes | None = None


def decode_events(offset: int, at: int, kind: int, payload: bytes) -> Iterator[Event]:
    """Decode the events of a verified record."""
    count, queue_id, store_id, marks, varies, name_bytes, _, detail_bytes, *fixed = _FIELDS.unpack_from(payload)
    position = FIELD_BYTES
    columns: list[Sequence[int]] = []
    for number, value in enumerate(fixed):
        if varies >> number & 1:
            columns.append(struct.unpack_from(f"<{count}q", payload, position))
            position += 8 * count
        elif number == 0:
            columns.append(range(value, value + count))
        else:
            columns.append([value] * count)
    ends = []
    for part in (DETAILS, BODIES):
        ends.append(struct.unpack_from(f"<{count}I", payload, position) if varies & part else None)
        position += 4 * (count + (count & 1)) if varies & part else 0
    name = payload[position : position + name_bytes].decode()
    details_start = position + name_bytes
    bodies_start = details_start + detail_bytes
    word = _word(offset, kind)
    mark_words = [mark.name.lower() for mark in EventFlag if marks & mark and mark.name]
    for number, row in enumerate(zip(*columns, strict=True)):
        message_id, pushed_at, first_leased_at, leased_at, until, attempts, priority, content = row
        detail = _part(payload, details_start, ends[0], number) if ends[0] else payload[details_start:bodies_start]
        yield Event(
            offset=offset,
            number=number,
            at=pushed_at if kind == Kind.PUSHED else leased_at if kind == Kind.LEASED else at,
            kind=word,
            queue=name,
            queue_id=queue_id,
            id=message_id or None,
            uuid=message_uuid(message_id, pushed_at, store_id) if message_id else None,
            pushed_at=pushed_at or None,
            first_leased_at=first_leased_at or None,
            leased_at=leased_at or None,
            until=until or None,
            attempts=attempts,
            priority=priority,
            marks=mark_words,
            details=_decode_json(detail) if detail else {},
            content=CONTENTS[content] if kind == Kind.PUSHED else None,
            body=_part(payload, bodies_start, ends[1], number) if ends[1] else None,
        )


def head_of(payload: bytes) -> tuple[str, int]:
    """Return a record's queue and message count, at a fraction of the cost of decoding its events."""
    count, _, _, _, varies, name_bytes, *_ = _FIELDS.unpack_from(payload)
    position = FIELD_BYTES + 8 * count * (varies & DETAILS - 1).bit_count()
    for part in (DETAILS, BODIES):
        position += 4 * (count + (count & 1)) if varies & part else 0
    return payload[position : position + name_bytes].decode(), count


def ids_of(payload: bytes) -> Sequence[int]:
    """Return the ids of a record's messages."""
    count, _, _, _, varies, _, _, _, first, *_ = _FIELDS.unpack_from(payload)
    if varies & 1:
        ids: Sequence[int] = struct.unpack_from(f"<{count}q", payload, FIELD_BYTES)
        return ids
    return range(first, first + count)


def _part(payload: bytes, start: int, ends: Sequence[int], number: int) -> bytes:
    return payload[start + (ends[number - 1] if number else 0) : start + ends[number]]


def _word(offset: int, kind: int) -> str:
    try:
        return Kind(kind).name.lower()
    except ValueError:
        raise Damaged(
            f"the record at offset {offset} is of unknown kind {kind}",
            hint="read it with the newer Penstock that wrote it",
        ) from None
