"""Deduplicates appends by a hash of their key and their content.

The first record of an append with a key carries the hash. 32 bits are too few to identify an append, so the content is
compared, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import msgspec

from penstock.errors import CorruptRecord
from penstock.log.interface import Streams
from penstock.log.model import READ_RECORDS_MAX, AppendOutcome, NewRecord, Payload


def tag_of(key: str) -> int:
    return crc32(key.encode()) or 1


def tagged(payloads: Sequence[Payload], tag: int) -> list[Payload]:
    first = payloads[0]
    if isinstance(first, bytes):
        first = NewRecord(first)
    return [msgspec.structs.replace(first, tag=tag), *payloads[1:]]


def tags_from(streams: Streams, name: str, at: int, since_ms: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the tags of the records from an offset up to the current end, with their offsets."""
    end = streams.show(name).next
    while at < end:
        try:
            page = streams.read(name, at, limit=READ_RECORDS_MAX)
        except CorruptRecord as error:
            at = error.offset + 1
            continue
        yield from ((each.tag, each.offset) for each in page.records if each.tag and each.time_ms >= since_ms)
        at = page.next


def same(streams: Streams, name: str, first: int, payloads: Sequence[Payload]) -> int:
    """Return how many of these payloads exist in sequence from an offset on."""
    there = 0
    while there < len(payloads):
        page = streams.read(name, first + there, limit=min(READ_RECORDS_MAX, len(payloads) - there))
        for record in page.records:
            payload = payloads[there]
            sent = NewRecord(payload) if isinstance(payload, bytes) else payload
            if (record.offset, record.data, record.content) != (first + there, sent.data, sent.content):
                return there
            there += 1
        if not page.records:
            break
    return there


def find(streams: Streams, name: str, key: str, payloads: Sequence[Payload], since: int) -> tuple[int, int] | None:
    """Return the first offset of an append with this key after `since`, and how many of its records exist."""
    tag = tag_of(key)
    for found, offset in tags_from(streams, name, max(since, streams.show(name).first)):
        if found == tag and (there := same(streams, name, offset, payloads)):
            return offset, there
    return None


def append_once(
    streams: Streams, name: str, key: str, payloads: Sequence[Payload], since: int | None = None
) -> AppendOutcome:
    """Append unless the same append exists at or after the offset `since`."""
    known = None if since is None else find(streams, name, key, payloads, since)
    if known is None:
        return streams.append(name, tagged(payloads, tag_of(key)))
    first, there = known
    if there == len(payloads):
        return AppendOutcome(first, first + there - 1, 0)
    # A power failure lost the rest of it.
    rest = streams.append(name, payloads[there:])
    return AppendOutcome(first, rest.last, rest.time_ms)
