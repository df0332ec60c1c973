"""Writes a journal like that of a server, directly through the log writer."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.journal.events import Kind, encode_events
from penstock.log.writer import Log

BATCH = 100
BODY_BYTES = 200
QUEUES = 4
START_MS = 1_760_000_000_000
STEP_MS = 30
RECORDS_AT_ONCE = 150


def fill(journal: Path, events: int) -> int:
    """Write the events of 200-byte messages that are pushed, leased and acked in batches of 100.

    The messages consist of hex digits, which compress to half, and are in four queues, a few thousand per second.
    Returns the size of the journal in bytes.
    """
    with Log.create(journal, "journal") as log:
        now, first, done = START_MS, 1, 0
        while done < events:
            records: list[bytes] = []
            while len(records) < RECORDS_AT_ONCE and done < events:
                records += _life_of_a_batch(first, now)
                first, done, now = first + BATCH, done + 3 * BATCH, now + STEP_MS
            log.append_encoded(b"".join(records), list(map(len, records)))
        return sum(segment.bytes for segment in log.segments())


def _life_of_a_batch(first: int, now: int) -> list[bytes]:
    number = first // BATCH % QUEUES
    name, ids = b"queue-%d" % number, range(first, first + BATCH)
    text = os.urandom(BODY_BYTES // 2 * BATCH).hex().encode()
    bodies = [text[at : at + BODY_BYTES] for at in range(0, len(text), BODY_BYTES)]
    pushed = (ids, now, 0, 0, now, 0, 0, 0)
    leased = (ids, now, now + 7, now + 7, now + 30_007, 1, 0, 0)
    acked = (ids, now, now + 7, now + 7, 0, 1, 0, 0)
    return [
        encode_events(Kind.PUSHED, now, number + 1, name, 1, BATCH, pushed, bodies=bodies),
        encode_events(Kind.LEASED, now + 7, number + 1, name, 1, BATCH, leased),
        encode_events(Kind.ACKED, now + 25, number + 1, name, 1, BATCH, acked),
    ]
