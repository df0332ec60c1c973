"""Writers and consumers that run in processes to be killed, and log their requests and the responses.

Each process writes to its own log file, one line before a request and one after the response. A line is a kind and its
fields, separated by spaces. Written lines survive the process.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock import LeaseLost, LiteQueue, Message

LEASE_SECONDS = 6
# Too many for any message to become a dead letter, which the checker would mistake for a lost message.
MAX_RETRIES = 900
MANY = 6


class Notes:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, *fields: object) -> None:
        os.write(self._file, (" ".join([kind, *map(str, fields)]) + "\n").encode())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Client:
    path: Path
    queue: LiteQueue
    notes: Notes
    chance: random.Random


def work_until_killed(step: Callable[[Client], None], queue_path: Path, notes_path: Path, seed: int) -> None:
    notes, chance = Notes(notes_path), random.Random(seed)
    try:
        client = Client(queue_path, LiteQueue(queue_path, max_retries=MAX_RETRIES), notes, chance)
        while True:
            step(client)
            time.sleep(chance.uniform(0, 0.004))
    except BaseException as error:
        notes.write("unexpected", repr(error).replace("\n", " "))
        raise


def write(client: Client) -> None:
    """Put one message or a batch, with a delay or a priority, or in a transaction of the caller."""
    queue, notes, chance = client.queue, client.notes, client.chance
    way = chance.random()
    payloads = [b"%016x" % chance.getrandbits(64) for _ in range(MANY if way < 0.2 else 1)]
    notes.write("put", *[payload.decode() for payload in payloads])
    if way < 0.2:
        ids = queue.put_many(payloads)
    elif way < 0.4:
        ids = [queue.put(payloads[0], delay=chance.choice((0.05, 0.5)), priority=chance.randint(-1, 1))]
    elif way < 0.5:
        ids = [_put_in_own_transaction(client, payloads[0])]
    else:
        ids = [queue.put(payloads[0])]
    notes.write("was-put", *ids)


def _put_in_own_transaction(client: Client, payload: bytes) -> str:
    with closing(sqlite3.connect(client.path, timeout=30)) as connection:
        id_ = client.queue.put(payload, conn=connection)
        connection.commit()
        return id_


def consume(client: Client) -> None:
    """Lease messages, then usually ack them, sometimes nack them, and sometimes let the lease expire."""
    queue, notes, chance = client.queue, client.notes, client.chance
    sent_at = now_ms()
    notes.write("pop")
    messages = queue.pop_many(chance.choice((1, 1, MANY, 4 * MANY)), timeout=LEASE_SECONDS, wait=0.2)
    received_at = now_ms()
    for message in messages:
        notes.write("popped", message.id, message.data.decode(), message.retry_count, sent_at, received_at)
    time.sleep(chance.uniform(0, 0.01))
    way = chance.random()
    if not messages or way < 0.04:
        return
    verb = "nack" if way < 0.15 else "ack"
    for message in messages:
        notes.write(verb, message.id, message.retry_count)
    lost = _settle(queue, verb, messages, chance)
    for message in messages:
        notes.write(f"lost-{verb}" if message in lost else f"{verb}ed", message.id, message.retry_count, now_ms())


def _settle(queue: LiteQueue, verb: str, messages: list[Message], chance: random.Random) -> list[Message]:
    if len(messages) > 1 or chance.random() < 0.5:
        return queue.ack_many(messages) if verb == "ack" else queue.nack_many(messages, delay=0.1)
    try:
        queue.ack(messages[0]) if verb == "ack" else queue.nack(messages[0], delay=0)
    except LeaseLost:
        return messages
    return []
