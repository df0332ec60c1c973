"""Encoding of a record: a header of 24 bytes and the payload. It has no offset, so it can be copied anywhere.

 0 u32 payload length · 4 u32 checksum of bytes 8 to the end, seeded with the length · 8 i64 time_ms
16 u8 kind · 17 u8 flags · 18 u16 field_bytes · 20 u32 tag (events: zero) · 24 payload       (little-endian)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from struct import Struct

from penstock.errors import InvalidInput
from penstock.log.model import FLAGS, RECORD_BYTES_MAX, LogRecord, Payload

try:
    from isal.isal_zlib import crc32  # The same sums as zlib's, three times as fast.
except ImportError:
    from zlib import crc32

HEADER = Struct("<IIqBBHI")
HEADER_BYTES = HEADER.size
_SIZED = Struct("<II")
_REST = Struct("<qBBHI")
_HEAD = Struct("<II16s")
_LENGTH = Struct("<I")
_LENGTH_KIND_TAG = Struct("<I12xB3xI")
REST_AT = _SIZED.size

LENGTH_MAX = RECORD_BYTES_MAX + 0xFFFF  # An event's fields come on top of the payload limit.
USER = 0
# Kind of the marker that replaces a record which a repair could not restore.
LOST = 255
Bytes = bytes | bytearray | memoryview
SUMS_PER_BYTE = 64
SUMMED_BYTES_MIN = 1 << 20
# What a record can begin with: a possible length, a time before the year 2248, and not only zeros. Without it, looking
# for a record in damaged bytes would sum up millions of bytes for most of them.
_CANDIDATE = re.compile(rb"(?s)(?!\0{8}).{3}[\0\1].{9}[\0-\7]\0\0")

__all__ = ["HEADER_BYTES", "LOST", "USER", "Bytes", "crc32", "decode", "encode", "encode_event", "intact", "sizes_of"]


def encode(payloads: Sequence[Payload], time_ms: int, lengths: Sequence[int] | None = None) -> tuple[bytes, list[int]]:
    """Encode user records; return them back to back and the size of each."""
    # One call into C a step: as fast as a loop at 100 records, faster only at 1,000.
    if set(map(type, payloads)) != {bytes}:
        return _encode_mixed(payloads, time_ms)
    if lengths is None:
        lengths = list(map(len, payloads))  # type: ignore[arg-type]
    rest = _REST.pack(time_ms, USER, 0, 0, 0)
    # Within a batch all but the payload repeats, so its part of the sum is worked out once for each length.
    seeds = {length: crc32(rest, length) for length in set(lengths)}
    each_seed: Iterator[int]
    if len(seeds) == 1:
        each_seed, sizes = repeat(seeds[lengths[0]]), [HEADER_BYTES + lengths[0]] * len(lengths)
    else:
        each_seed, sizes = map(seeds.__getitem__, lengths), [HEADER_BYTES + length for length in lengths]
    headers = map(_HEAD.pack, lengths, map(crc32, payloads, each_seed), repeat(rest))
    data = b"".join(chain.from_iterable(zip(headers, payloads, strict=False)))  # type: ignore[arg-type]
    return data, sizes


def _encode_mixed(payloads: Sequence[Payload], time_ms: int) -> tuple[bytes, list[int]]:
    """Encode records of which at least one has a content type or a tag."""
    parts = [
        encode_event(USER, time_ms, b"", payload)
        if isinstance(payload, bytes)
        else encode_event(USER, time_ms, b"", payload.data, FLAGS[payload.content], payload.tag)
        for payload in payloads
    ]
    return b"".join(parts), list(map(len, parts))


def encode_event(kind: int, time_ms: int, fields: bytes, data: bytes = b"", flags: int = 0, tag: int = 0) -> bytes:
    """Encode a record of any kind; `fields` are the fixed fields that bulk readers gather."""
    length = len(fields) + len(data)
    rest = _REST.pack(time_ms, kind, flags, len(fields), tag)
    return _SIZED.pack(length, crc32(data, crc32(fields, crc32(rest, length)))) + rest + fields + data


def intact(buffer: memoryview, start: int, end: int) -> bool:
    """Return True if these bytes are exactly one record with a valid checksum."""
    if end - start < HEADER_BYTES or end > len(buffer):
        return False
    length, checksum = _SIZED.unpack_from(buffer, start)
    return bool(length == end - start - HEADER_BYTES and crc32(buffer[start + REST_AT : end], length) == checksum)


def decode(buffer: bytes, start: int, end: int, offset: int) -> LogRecord:
    """Decode a record that is known to be intact."""
    _, _, time_ms, kind, flags, field_bytes, tag = HEADER.unpack_from(buffer, start)
    return LogRecord(offset, time_ms, buffer[start + HEADER_BYTES : end], kind, flags, field_bytes, tag)


def end_at(buffer: Bytes, start: int) -> int | None:
    """Return the end of a record that would begin here; None if none can."""
    if start + HEADER_BYTES > len(buffer):
        return None
    length, kind, tag = _LENGTH_KIND_TAG.unpack_from(buffer, start)
    end = start + HEADER_BYTES + length
    return int(end) if not (kind and tag) and length <= LENGTH_MAX and end <= len(buffer) else None


def sizes_of(buffer: Bytes) -> list[int]:
    """Return the size of each of these encoded records, from their length fields alone."""
    sizes, at = [], 0
    while at < len(buffer):
        end = end_at(buffer, at)
        if end is None:
            raise InvalidInput(f"no record begins at byte {at} of {len(buffer)}", field="records")
        sizes.append(end - at)
        at = end
    return sizes


def walk(buffer: memoryview, start: int) -> Iterator[int]:
    """Return the ends of the intact records from here on, up to the first damaged one."""
    end = end_at(buffer, start)
    while end is not None and intact(buffer, start, end):
        yield end
        start, end = end, end_at(buffer, end)


def find(buffer: memoryview, start: int, stop: int | None = None, *, followed: bool = True) -> int | None:
    """Return where the next intact record begins, at this byte or later.

    A payload may itself hold a record. What follows such a record is not a record again, so by default only those
    count that another record, or the end, follows. Damaged bytes that were made to look like many records are given up
    when they have cost `SUMS_PER_BYTE` times their length.
    """
    stop = len(buffer) if stop is None else min(stop, len(buffer))
    buffer = buffer[:stop]
    left = SUMS_PER_BYTE * max(len(buffer) - start, SUMMED_BYTES_MIN)
    while left > 0 and (candidate := _CANDIDATE.search(buffer, start)):
        at = candidate.start()
        end = end_at(buffer, at)
        left -= 0 if end is None else end - at
        if end is not None and intact(buffer, at, end) and (not followed or _is_boundary(buffer, end)):
            return at
        start = at + 1
    return None


def _is_boundary(buffer: memoryview, at: int) -> bool:
    end = end_at(buffer, at)
    return at == len(buffer) or (end is not None and intact(buffer, at, end))


def tombstones(count: int, size: int) -> tuple[bytes, list[int]]:
    """`count` records of kind LOST that fill `size` bytes exactly, and where each ends: what follows stays in place."""
    small = encode_event(LOST, 0, b"")
    last = encode_event(LOST, 0, b"", bytes(size - count * HEADER_BYTES))
    ends = [HEADER_BYTES * number for number in range(1, count)]
    return small * (count - 1) + last, [*ends, size]


def kind_at(buffer: Bytes, start: int) -> int:
    return buffer[start + 16]


def time_at(buffer: Bytes, start: int) -> int:
    return int(HEADER.unpack_from(buffer, start)[2])
