"""Many threads and processes use one queue file at once. Each keeps a tally for the final comparison."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from penstock import LiteQueue

QNAMES = ("default", "ns/task/queue")
# High enough that nacks never dead-letter a message.
MAX_RETRIES = 900


@dataclass
class Tally:
    put: list[str] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def use_continuously(path: Path, seed: int, seconds: float, queue: LiteQueue | None = None) -> Tally:
    """Use one open queue for some time, possibly shared with other threads."""
    tally, chance, deadline = Tally(), random.Random(seed), time.monotonic() + seconds
    try:
        if queue is not None:
            while time.monotonic() < deadline:
                _use(queue, chance, tally)
        else:
            with LiteQueue(path, MAX_RETRIES) as own:
                while time.monotonic() < deadline:
                    _use(own, chance, tally)
    except BaseException as error:
        tally.errors.append(repr(error))
    return tally


def use_reopened(path: Path, seed: int, seconds: float) -> Tally:
    """Repeatedly open the file, use it a little and close it."""
    tally, chance, deadline = Tally(), random.Random(seed), time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            with LiteQueue(path, MAX_RETRIES) as queue:
                for _ in range(chance.randrange(4)):
                    _use(queue, chance, tally)
    except BaseException as error:
        tally.errors.append(repr(error))
    return tally


def _use(queue: LiteQueue, chance: random.Random, tally: Tally) -> None:
    qname = chance.choice(QNAMES)
    action = chance.random()
    if action < 0.25:
        tally.put.append(queue.put(b"%d" % chance.getrandbits(40), qname, priority=chance.choice((0, 0, 1))))
    elif action < 0.35:
        tally.put += queue.put_many([b"x" * chance.randrange(2_000) for _ in range(5)], qname)
    elif action < 0.6:
        with queue.process(qname) as message:
            pass
        if message is not None:
            tally.acked.append(message.id)
    elif action < 0.75:
        messages = queue.pop_many(8, qname)
        lost = queue.ack_many(messages[:4]) + queue.nack_many(messages[4:], delay=0)
        assert not lost
        tally.acked += [message.id for message in messages[:4]]
    elif action < 0.85:
        queue.peek(qname)
    elif action < 0.95:
        queue.qsize(qname)
    else:
        queue.dlq(qname)
        if queue._store.find_queue(qname):
            queue._broker.stats(qname)


def lock_with_sqlite(path: Path, seed: int, seconds: float) -> Tally:
    """Write to the same file in short transactions with plain sqlite3, as a user's own program might."""
    tally, chance, deadline = Tally(), random.Random(seed), time.monotonic() + seconds
    try:
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS mine (n INTEGER)")
            while time.monotonic() < deadline:
                db.execute("BEGIN IMMEDIATE")
                db.execute("INSERT INTO mine VALUES (1)")
                time.sleep(chance.uniform(0, 0.02))
                db.execute("COMMIT")
                time.sleep(chance.uniform(0, 0.02))
    except BaseException as error:
        tally.errors.append(repr(error))
    return tally


def open_at(path: Path, at: float) -> Tally:
    """Open a file, which may not exist yet, at a given time and put one message."""
    tally = Tally()
    time.sleep(max(0.0, at - time.time()))
    try:
        with LiteQueue(path) as queue:
            tally.put.append(queue.put(b"x"))
    except BaseException as error:
        tally.errors.append(repr(error))
    return tally
