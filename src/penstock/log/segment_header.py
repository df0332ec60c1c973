"""The header of a segment file: its stream and first offset, so that a misplaced file is not served.

It is written twice, so that one damaged byte leaves a readable copy. Segments of 0.1.0 have no header; the stream's
identity stores the offset from which on segments have one (`headed_from`).

 0 magic · 8 u64 stream id · 16 u64 first offset · 24 u32 checksum of bytes 0 to 24 · 28 zero · 32 the same once more
"""

from __future__ import annotations

from struct import Struct

from penstock.log.record import Bytes, crc32, end_at, intact

HEAD_BYTES = 64
_COPY_BYTES = HEAD_BYTES // 2
_FIELDS = Struct("<8sQQ")
_SUM = Struct("<I")
_MAGIC = b"PENSTKL2"  # Read as a record length it is impossible, so a header is never taken for a record.
# A stream's id and the offset of a segment's first record.
Owner = tuple[int, int]


def head_of(uid: int, first: int) -> bytes:
    fields = _FIELDS.pack(_MAGIC, uid, first)
    return (fields + _SUM.pack(crc32(fields))).ljust(_COPY_BYTES, b"\0") * 2


def owners_in(view: Bytes) -> set[Owner]:
    """Return the owners in the readable copies of a header; empty if there is none."""
    found = set()
    for at in (0, _COPY_BYTES):
        if len(view) >= at + _COPY_BYTES:
            fields = view[at : at + _FIELDS.size]
            magic, uid, first = _FIELDS.unpack(fields)
            if magic == _MAGIC and _SUM.unpack_from(view, at + _FIELDS.size)[0] == crc32(fields):
                found.add((uid, first))
    return found


def is_misplaced(view: memoryview, owner: Owner, start: int) -> bool:
    """Return True if this file was written for another stream or offset; `start` is where its records should begin.

    An unreadable header proves nothing, unless a record begins in its place. Nor does a header inside the first record
    of a file without one: that is payload.
    """
    owners = owners_in(view)
    end = end_at(view, 0)
    begins_with_record = end is not None and intact(view, 0, end)
    if not start:
        return bool(owners) and not begins_with_record
    return owner not in owners if owners else begins_with_record
