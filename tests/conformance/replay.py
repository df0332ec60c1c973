"""Replays the journal and compares the result with the store's counters."""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

from penstock.core.model import decode_options
from penstock.journal.events import Event, decode_events
from penstock.log.reader import LogReader
from tests.conformance.recount import Database, counter_row

WAITING, LEASED, DEAD, ARCHIVED = "waiting", "leased", "dead", "archived"
_AFTER = {
    "pushed": WAITING,
    "leased": LEASED,
    "extended": LEASED,
    "nacked": WAITING,
    "lapsed": WAITING,
    "redriven": WAITING,
    "expired": None,
    "removed": None,
    "forgotten": None,
}
_BEFORE = {
    "pushed": None,
    "extended": LEASED,
    "acked": LEASED,
    "nacked": LEASED,
    "lapsed": LEASED,
    "dead": WAITING,
    "redriven": DEAD,
    "expired": WAITING,
    "released": LEASED,
    "forgotten": ARCHIVED,
}
HELD = (WAITING, LEASED, DEAD)
COUNTED = ("pushed", "leased", "acked", "nacked", "lapsed", "dead", "expired", "redriven", "removed")


class Replay:
    """Rebuilds the state of every message, by queue id, from events alone, and fails on an impossible transition."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.names: dict[int, str] = {}
        self.states: dict[int, dict[int, str]] = {}
        self.totals: dict[int, Counter[str]] = {}
        # Queues with incomplete events, for which only the number of messages in each state is known.
        self.incomplete: set[int] = set()
        # Number of messages by state, for each queue in the journal: the depths recorded on entry plus later events.
        self.held: dict[int, Counter[str | None]] = {}
        # The last lease of each message: its attempt, its time, and whether the message was a dead letter.
        self._leases: dict[int, tuple[int, int | None, bool]] = {}

    def play(self, events: Iterable[Event]) -> None:
        for event in events:
            assert event.offset in (self.next_offset, self.next_offset - 1), "offsets are not dense"
            assert (event.number > 0) == (event.offset < self.next_offset)
            self.next_offset = event.offset + 1
            if event.kind == "queue":
                self._queue(event)
            elif event.kind != "worker":
                self._message(event)

    def _queue(self, event: Event) -> None:
        what, queue_id = event.details["what"], event.queue_id
        if what == "created":
            self._add_queue(event)
            if event.details["options"]["journal"] == "off":
                self.incomplete.add(queue_id)
                del self.held[queue_id]
        elif what == "entered":
            if queue_id not in self.names:
                self._add_queue(event)
            self.incomplete.add(queue_id)
            self.held[queue_id] = Counter({state: event.details[state] for state in HELD})
        elif what == "left":
            self._check_held(event)
            self.incomplete.add(queue_id)
        elif what == "removed":
            self._check_held(event)
            if queue_id in self.names:
                held = len(self.states.pop(queue_id))
                assert queue_id in self.incomplete or held == event.details["held"]
                del self.names[queue_id], self.totals[queue_id]
                self.incomplete.discard(queue_id)

    def _add_queue(self, event: Event) -> None:
        assert event.queue_id not in self.names
        self.names[event.queue_id] = event.queue
        self.states[event.queue_id], self.totals[event.queue_id] = {}, Counter()
        self.held[event.queue_id] = Counter()

    def _check_held(self, event: Event) -> None:
        held = self.held.pop(event.queue_id, None)
        expected = {} if held is None else {state: held[state] for state in HELD}
        assert {state: event.details[state] for state in HELD if state in event.details} == expected

    def _message(self, event: Event) -> None:
        assert self.names[event.queue_id] == event.queue
        assert event.id is not None
        after, held = self._after(event), self.held[event.queue_id]
        held[_before(event)] -= 1
        held[after] += 1
        if event.queue_id in self.incomplete:
            return
        states = self.states[event.queue_id]
        assert states.pop(event.id, None) == _before(event), event
        lease = (event.attempts, event.leased_at, "dead_letter" in event.marks)
        if event.kind == "leased":
            self._leases[event.id] = lease
        elif event.kind in ("acked", "nacked", "lapsed"):
            assert self._leases.pop(event.id) == lease, event
        if after is not None:
            states[event.id] = after
        if event.kind in COUNTED:
            self.totals[event.queue_id][event.kind] += 1

    def _after(self, event: Event) -> str | None:
        if event.kind == "acked":
            return ARCHIVED if "kept" in event.marks else None
        if event.kind == "dead":
            return None if "gone" in event.marks else DEAD
        if event.kind == "released":
            return DEAD if "dead_letter" in event.marks else WAITING
        return _AFTER[event.kind]


def _before(event: Event) -> str | None:
    if event.kind == "leased":
        return DEAD if "dead_letter" in event.marks else WAITING
    if event.kind != "removed":
        return _BEFORE[event.kind]
    if "leased" in event.marks:
        return LEASED
    if "dead_letter" in event.marks:
        return DEAD
    return ARCHIVED if "kept" in event.marks else WAITING


def check_journal(db: sqlite3.Connection, folder: Path) -> None:
    """Check a file whose journal was on from the start: replay the log, then the events still in the store."""
    replay = Replay()
    if folder.exists():
        replay.play(log_events(folder))
    logged = replay.next_offset
    replay.play(event for event in events_in(db) if event.offset >= logged)
    check_counters(db, replay)


def log_events(folder: Path) -> Iterator[Event]:
    with LogReader(folder) as reader:
        offset = reader.first_offset
        while offset < reader.next_offset:
            page = reader.read(offset)
            for record in page.records:
                yield from decode_events(record.offset, record.time_ms, record.kind, record.data)
            offset = page.next


def check_counters(db: Database, replay: Replay) -> None:
    for queue_id, name, options in db.execute("SELECT id, name, options FROM penstock_queue").fetchall():
        if queue_id not in replay.held:
            assert decode_options(options).journal == "off"
            continue
        assert replay.names[queue_id] == name
        counters, held = counter_row(db, queue_id), replay.held[queue_id]
        kept = {WAITING: counters["ready"] + counters["scheduled"], **{n: counters[n] for n in (LEASED, DEAD)}}
        assert kept == {state: held[state] for state in HELD}, name
        if queue_id in replay.incomplete:
            continue
        counted, totals = Counter(replay.states[queue_id].values()), replay.totals[queue_id]
        kept[ARCHIVED] = counters[ARCHIVED]
        assert kept == {state: counted[state] for state in kept}, name
        assert {n: counters[f"n_{n}"] for n in COUNTED} == {n: totals[n] for n in COUNTED}, name


def events_in(db: sqlite3.Connection) -> Iterator[Event]:
    for first_offset, count, records in db.execute("SELECT * FROM penstock_journal ORDER BY first_offset"):
        events = list(split(first_offset, records))
        assert not events or events[-1].offset == first_offset + count - 1
        yield from events


def split(offset: int, records: bytes) -> Iterator[Event]:
    """Decode records that lie back to back, and verify each checksum."""
    position = 0
    while position < len(records):
        length, checksum, at, kind, _, _, _ = struct.unpack_from("<IIqBBHI", records, position)
        end = position + 24 + length
        assert crc32(records[position + 8 : end], length) == checksum
        yield from decode_events(offset, at, kind, records[position + 24 : end])
        offset, position = offset + 1, end
    assert position == len(records)
