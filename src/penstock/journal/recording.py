"""Records a transaction's events for the journal, shared by both stores.

Callers ask `queue.is_journalled` first, so a store without a journal pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from penstock.core.ids import ID_MAX
from penstock.core.model import Delivery, QueueInfo, QueueOptions, decode_options
from penstock.journal.events import BODY_BYTES_MAX, EventFlag, Kind, encode_detail
from penstock.journal.recorder import Named, Recorder

NO_MESSAGE = (0, 0, 0, 0, 0, 0, 0, 0)


class JournalTransaction(Protocol):
    now: int
    journal: Recorder


class JournalledQueue(Named, Protocol):
    options: QueueOptions
    journals: bool

    @property
    def is_journalled(self) -> bool: ...


def record_queue(tx: JournalTransaction, queue: JournalledQueue, what: str, **detail: Any) -> None:
    if queue.journals:
        tx.journal.note(Kind.QUEUE, queue, [NO_MESSAGE], details=[encode_detail(what=what, **detail)])


def record_changed(tx: JournalTransaction, queue: JournalledQueue, before: QueueOptions, found: QueueInfo) -> None:
    record_queue(tx, queue, "changed", options=queue.options)
    if (before.journal == "off") != (queue.options.journal == "off"):
        record_queue(tx, queue, "entered" if before.journal == "off" else "left", **_depth(found))


def record_dropped(
    tx: JournalTransaction, queue: JournalledQueue, held: int, found: QueueInfo, oldest_at: int | None
) -> None:
    """Record the queue's messages by state, unless the journal does not cover them.

    No message that ends with it was pushed before `since`, so that a reader need not look further back.
    """
    known = {**_depth(found), "since": tx.now if oldest_at is None else oldest_at}
    record_queue(tx, queue, "removed", held=held, **(known if queue.is_journalled else {}))


def _depth(found: QueueInfo) -> dict[str, int]:
    return {"waiting": found.ready + found.scheduled, "leased": found.leased, "dead": found.dead}


class _Name(msgspec.Struct):
    id: int
    name_bytes: bytes


def record_depth(
    tx: JournalTransaction, queues: Iterable[tuple[int, str, str, int, int, int]], *, entered: bool
) -> None:
    """Record the state of all queues when a journal starts or ends: id, name, options, and counts by state."""
    what = "entered" if entered else "left"
    for queue_id, name, options, waiting, leased, dead in queues:
        if decode_options(options).journal != "off":
            detail = encode_detail(what=what, waiting=waiting, leased=leased, dead=dead)
            tx.journal.note(Kind.QUEUE, _Name(queue_id, name.encode()), [NO_MESSAGE], details=[detail])


def record_worker(tx: JournalTransaction, what: str, kind: str, name: str) -> None:
    details = [encode_detail(what=what, worker=name, role=kind)]
    tx.journal.note(Kind.WORKER, _Name(0, b""), [NO_MESSAGE], details=details)


def record_pushed(
    tx: JournalTransaction,
    queue: JournalledQueue,
    rows: Sequence[tuple[Any, ...]],
    expiries: Mapping[int, int | None] | None = None,
    marks: int = 0,
) -> None:
    """Record pushes from inserted rows: place, created_at, available_at, priority, content, key, headers, payload."""
    count = len(rows)
    places, created_at, available_at, priority, content, keys, headers, payloads = zip(*rows, strict=True)
    ids = [place & ID_MAX for place in places]
    due_at = created_at
    if available_at.count(None) < count:
        due_at = tuple(due or created for due, created in zip(available_at, created_at, strict=True))
    bodies = payloads if queue.options.journal == "full" else None
    large = bodies is not None and max(map(len, bodies)) > BODY_BYTES_MAX
    details = None
    if large or expiries or keys.count(None) < count or headers.count(None) < count:
        known = expiries or {}
        details = [_push_detail(row, known.get(id_), bodies is not None) for id_, row in zip(ids, rows, strict=True)]
    if large and bodies is not None:
        bodies = tuple(body if len(body) <= BODY_BYTES_MAX else b"" for body in bodies)
    columns = (ids, created_at, 0, 0, due_at, 0, priority, content)
    tx.journal.note_columns(Kind.PUSHED, queue, count, columns, marks, details, bodies)


def record_pushed_alike(
    tx: JournalTransaction, queue: JournalledQueue, ids: range, due_at: int, content: int, payloads: Sequence[bytes]
) -> None:
    """Record pushes of messages that differ only in their payloads, none of which is too large for a record."""
    bodies = payloads if queue.options.journal == "full" else None
    columns = (ids, tx.now, 0, 0, due_at, 0, 0, content)
    tx.journal.note_columns(Kind.PUSHED, queue, len(ids), columns, 0, None, bodies)


def _push_detail(row: tuple[Any, ...], expires_at: int | None, with_body: bool) -> bytes:
    _, _, _, _, _, key, headers, payload = row
    return encode_detail(
        key=key,
        headers=None if headers is None else msgspec.Raw(headers.encode()),
        expires_at=expires_at,
        body_bytes=len(payload) if with_body and len(payload) > BODY_BYTES_MAX else None,
    )


def record_leased(
    tx: JournalTransaction,
    queue: Named,
    messages: Sequence[Delivery],
    workers: Sequence[str | None],
    first_leased: Mapping[int, int],
    marks: int = 0,
) -> None:
    now = tx.now
    ids = [each.id for each in messages]
    columns = (
        ids,
        [each.created_at for each in messages],
        [first_leased.get(id_, now) for id_ in ids] if first_leased else now,
        now,
        [each.leased_until for each in messages],
        [each.attempts for each in messages],
        0,
        0,
    )
    tx.journal.note_columns(Kind.LEASED, queue, len(ids), columns, marks, worker_details(workers))


def record_taken(
    tx: JournalTransaction,
    queue: JournalledQueue,
    messages: Sequence[Delivery],
    first_leased: Mapping[int, int],
    details: Sequence[bytes] | None,
) -> None:
    """Record messages that were leased and acknowledged in one step."""
    record_leased(tx, queue, messages, [None] * len(messages), first_leased)
    now = tx.now
    rows = [
        (each.id, each.created_at, first_leased.get(each.id, now), now, 0, each.attempts, 0, 0) for each in messages
    ]
    tx.journal.note(Kind.ACKED, queue, rows, EventFlag.KEPT if queue.options.archive_ms != 0 else 0, details)


def record_leased_plain(
    tx: JournalTransaction, queue: Named, ids: Sequence[int], pushed: Sequence[int], until: int, worker: str | None
) -> None:
    """Record the first lease of messages that one consumer gets until the same time."""
    columns = (ids, pushed, tx.now, tx.now, until, 1, 0, 0)
    details = None if worker is None else [encode_detail(worker=worker)] * len(ids)
    tx.journal.note_columns(Kind.LEASED, queue, len(ids), columns, 0, details)


def worker_details(workers: Sequence[str | None]) -> list[bytes] | None:
    if not any(workers):
        return None
    details = {worker: encode_detail(worker=worker) for worker in set(workers)}
    return [details[worker] for worker in workers]
