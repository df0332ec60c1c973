"""The head of a segment's file: the stream and the offset that it belongs to, so that a misplaced file is not served.

It is written twice, so that one damaged byte leaves a copy that can be read. Streams that 0.1.0 wrote have segments
without a head; the stream's identity says from which offset on segments have one (`headed_from`).

 0 magic · 8 u64 stream id · 16 u64 first offset · 24 u32 checksum of bytes 0 to 24 · 28 zero · 32 the same once more
"""

from __future__ import annotations

from struct import Struct

from penstock.log.record import Bytes, crc32, end_at, intact

HEAD_BYTES = 64
_COPY_BYTES = HEAD_BYTES // 2
_FIELDS = Struct("<8sQQ")
_SUM = Struct("<I")
_MAGIC = b"PENSTKL2"  # As the length of a record it is impossible, so that a head is never taken for one.
# A stream's id and the offset of a segment's first record.
Owner = tuple[int, int]


def head_of(uid: int, first: int) -> bytes:
    fields = _FIELDS.pack(_MAGIC, uid, first)
    return (fields + _SUM.pack(crc32(fields))).ljust(_COPY_BYTES, b"\0") * 2


def owners_in(view: Bytes) -> set[Owner]:
    """Return what the legible copies of a head say; nothing if there is no head, or none that can be read."""
    found = set()
    for at in (0, _COPY_BYTES):
        if len(view) >= at + _COPY_BYTES:
            fields = view[at : at + _FIELDS.size]
            magic, uid, first = _FIELDS.unpack(fields)
            if magic == _MAGIC and _SUM.unpack_from(view, at + _FIELDS.size)[0] == crc32(fields):
                found.add((uid, first))
    return found


def is_misplaced(view: memoryview, owner: Owner, start: int) -> bool:
    """Return True if this file was written for another place; `start` is where the records should begin.

    A head that cannot be read proves nothing, unless a record begins where a head should be. Nor does a head inside the
    first record, where none should be: it is payload.
    """
    owners = owners_in(view)
    end = end_at(view, 0)
    begins_with_record = end is not None and intact(view, 0, end)
    if not start:
        return bool(owners) and not begins_with_record
    return owner not in owners if owners else begins_with_record
