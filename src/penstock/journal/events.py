"""Events: what can happen to a message or a queue, as records of a log.

Every event has one fixed shape, so that a reader of many can gather each field without looking at them one by one:
the record's header, 64 bytes of fields, then the queue's name, details as JSON (rare, often none) and the body.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Any
from zlib import crc32

import msgspec

from penstock.errors import Damaged
from penstock.identity import message_uuid
from penstock.model import Content


class Kind(IntEnum):
    QUEUE = 1
    """A queue was created, changed, paused or removed: see the details."""
    PUSHED = 2
    LEASED = 3
    EXTENDED = 4
    ACKED = 5
    NACKED = 6
    LAPSED = 7
    DEAD = 8
    REDRIVEN = 9
    EXPIRED = 10
    REMOVED = 11
    RELEASED = 12
    """A lease was given back and used up no attempt."""
    FORGOTTEN = 13
    """An archived message passed its time."""


class Mark(IntFlag):
    KEPT = 1
    """Acked, and archived rather than deleted."""
    GONE = 2
    """Dead, in a queue that keeps no dead letters."""
    DEAD_LETTER = 4
    """The lease was one on a dead letter."""
    BODILESS = 8
    """Pushed into a queue whose journal leaves bodies out."""


CONTENTS = (Content.BYTES, Content.TEXT, Content.JSON)
FIELD_BYTES = 64
HEADER_BYTES = 24

_HEAD = struct.Struct("<II")
# time, kind, content, field bytes, zero | id, pushed_at, first_leased_at, leased_at, until, priority, attempts,
# queue id, salt, name bytes, marks, detail bytes
_REST = struct.Struct("<qBBHIqqqqqiIIIHHI")
_pack_head, _pack_rest = _HEAD.pack, _REST.pack
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that happened, in words. Times are in milliseconds since 1970."""

    offset: int
    at: int
    kind: str
    queue: str
    queue_id: int
    id: int | None = None
    uuid: str | None = None
    pushed_at: int | None = None
    first_leased_at: int | None = None
    leased_at: int | None = None
    until: int | None = None
    """Pushed, nacked, redriven: when it can be leased. Leased, extended: until when it is."""
    attempts: int = 0
    priority: int = 0
    marks: list[str] = []
    details: dict[str, Any] = {}
    content: Content | None = None
    body: bytes | None = None


def encode_event(
    kind: int,
    now: int,
    queue_id: int,
    name: bytes,
    salt: int,
    message_id: int = 0,
    pushed_at: int = 0,
    first_leased_at: int = 0,
    leased_at: int = 0,
    until: int = 0,
    priority: int = 0,
    attempts: int = 0,
    marks: int = 0,
    detail: bytes = b"",
    content: int = 0,
    body: bytes = b"",
) -> bytes:
    """An event as a whole record, checksum included."""
    rest = (
        _pack_rest(
            now,
            kind,
            content,
            FIELD_BYTES,
            0,
            message_id,
            pushed_at,
            first_leased_at,
            leased_at,
            until,
            priority,
            attempts,
            queue_id,
            salt,
            len(name),
            marks,
            len(detail),
        )
        + name
        + detail
        + body
    )
    length = len(rest) - (HEADER_BYTES - _HEAD.size)
    return _pack_head(length, crc32(rest, length)) + rest


def encode_detail(**detail: Any) -> bytes:
    """Only what there is to tell."""
    told = {name: value for name, value in detail.items() if value is not None}
    return _encode_json(told) if told else b""


def decode_event(offset: int, at: int, kind: int, content: int, payload: bytes) -> Event:
    """An event from a record whose checksum has been verified."""
    (
        message_id,
        pushed_at,
        first_leased_at,
        leased_at,
        until,
        priority,
        attempts,
        queue_id,
        salt,
        name_bytes,
        marks,
        detail_bytes,
    ) = _FIELDS.unpack_from(payload)
    name_end = FIELD_BYTES + name_bytes
    body_start = name_end + detail_bytes
    detail = payload[name_end:body_start]
    return Event(
        offset=offset,
        at=at,
        kind=_kind_name(offset, kind),
        queue=payload[FIELD_BYTES:name_end].decode(),
        queue_id=queue_id,
        id=message_id or None,
        uuid=message_uuid(message_id, pushed_at, salt) if message_id else None,
        pushed_at=pushed_at or None,
        first_leased_at=first_leased_at or None,
        leased_at=leased_at or None,
        until=until or None,
        attempts=attempts,
        priority=priority,
        marks=[mark.name.lower() for mark in Mark if marks & mark and mark.name],
        details=_decode_json(detail) if detail else {},
        content=CONTENTS[content] if kind == Kind.PUSHED else None,
        body=payload[body_start:] if kind == Kind.PUSHED and not marks & Mark.BODILESS else None,
    )


_FIELDS = struct.Struct("<" + _REST.format[6:])
assert _FIELDS.size == FIELD_BYTES


def _kind_name(offset: int, kind: int) -> str:
    try:
        return Kind(kind).name.lower()
    except ValueError:
        raise Damaged(
            f"the record at offset {offset} is no event that this Penstock knows (kind {kind})",
            hint="read it with the newer Penstock that wrote it",
        ) from None
