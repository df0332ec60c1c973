"""Leases of plain messages in their first delivery: one row is a range of ids.

Every message of the queue's plain lane between the ids of a range is leased by it. Statements that end such leases
verify that the range is as it was read or remembered; if not, the batch runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby

from penstock.core.ids import QUEUE_SHIFT
from penstock.core.latency import SERVICE, TOTAL
from penstock.journal.events import Kind
from penstock.postgres.pipeline import Rows, blobs, ints, texts
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.recent_leases import RangePart
from penstock.store.postgres.settlement import EndedLease
from penstock.store.postgres.transaction import PostgresTransaction


def parts_of(rows: Rows) -> list[RangePart]:
    """Return the found messages by range."""
    parts: dict[tuple[int, int, int], RangePart] = {}
    for row in rows:
        _, _, _, _, leased_at, _, _, _, pushed_at, leased_until, token, queue_id, first_id, last_id, count, worker = row
        key = queue_id, leased_until, first_id
        part = parts.get(key)
        if part is None:
            part = parts[key] = RangePart(*key, last_id, count, token, leased_at, worker, [], [])
        part.ids.append(row[0])
        part.pushed.append(pushed_at)
    return list(parts.values())


def _spans(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return consecutive ids as (first, last)."""
    spans = []
    for _, members in groupby(enumerate(sorted(ids)), lambda numbered: numbered[1] - numbered[0]):
        consecutive = [each for _, each in members]
        spans.append((consecutive[0], consecutive[-1]))
    return spans


def _remembered(ids: Sequence[int]) -> str:
    """Return the ids as an array; those of a range without gaps as its first id and minus its last."""
    first, last = min(ids), max(ids)
    if len(ids) > 1 and last - first + 1 == len(ids):
        return f"{{{first},{-last}}}"
    return f"{{{','.join(map(str, ids))}}}"


def acknowledge(tx: PostgresTransaction, queues: Mapping[int, PostgresQueue], parts: Sequence[RangePart]) -> None:
    """End leases and delete their messages. Only for queues without an archive."""
    if not parts:
        return
    by_queue: dict[int, list[RangePart]] = {}
    for part in parts:
        by_queue.setdefault(part.queue_id, []).append(part)
    for queue_id, members in by_queue.items():
        _record(tx, queues[queue_id], members)
    spans: list[tuple[int, int]] = []
    for part in parts:
        start = part.queue_id << QUEUE_SHIFT
        mine = [(part.first_id, part.last_id)] if part.is_whole else _spans(part.ids)
        spans += [(start + first, start + last) for first, last in mine]
    tx.write(
        "lease_range.finish",
        tx.now // 60_000,
        *_keys(parts),
        ints(max(part.ids) for part in parts),
        ints(len(part.ids) for part in parts),
        blobs([part.token for part in parts]),
        texts([_remembered(part.ids) for part in parts]),
        ints(first for first, _ in spans),
        ints(last for _, last in spans),
    )


def _record(tx: PostgresTransaction, queue: PostgresQueue, parts: Sequence[RangePart]) -> None:
    """Count acknowledged messages, and add them to the journal and the latencies."""
    now, latencies = tx.now, tx.context.latencies
    ids, pushed, leased_at = parts[0].ids, parts[0].pushed, parts[0].leased_at
    service = [now - leased_at] * len(ids)
    leased: int | list[int] = leased_at
    if len(parts) > 1:
        ids = [each for part in parts for each in part.ids]
        pushed = [each for part in parts for each in part.pushed]
        leased = [part.leased_at for part in parts for _ in part.ids]
        service = [now - at for at in leased]
    if queue.is_journalled:
        tx.journal.note_columns(Kind.ACKED, queue, len(ids), (ids, pushed, leased, leased, 0, 1, 0, 0))
    queue.count(leased=-len(ids), n_acked=len(ids))
    # The database may still find that a range has changed, and the batch runs again.
    tx.on_commit.append(partial(latencies.add, queue.id, SERVICE, service))
    tx.on_commit.append(partial(latencies.add, queue.id, TOTAL, [now - at for at in pushed]))
    if queue.options.max_in_flight is not None:
        tx.wakes.add(queue.name)


def take_out(tx: PostgresTransaction, parts: Sequence[RangePart]) -> list[EndedLease]:
    """End leases whose messages stay, in another state, and return them."""
    if not parts:
        return []
    left: list[tuple[int, int, int]] = []
    for number, part in enumerate(parts, 1):
        first = part.first_id
        for ended in () if part.is_whole else sorted(part.ids):
            if first < ended:
                left.append((number, first, ended - 1))
            first = ended + 1
        if not part.is_whole and first <= part.last_id:
            left.append((number, first, part.last_id))
    tx.write(
        "lease_range.split",
        *_keys(parts),
        ints(part.last_id for part in parts),
        ints(part.size for part in parts),
        blobs([part.token for part in parts]),
        ints(number for number, _, _ in left),
        ints(first for _, first, _ in left),
        ints(last for _, _, last in left),
    )
    return [lease for part in parts for lease in _leases(part)]


def _leases(part: RangePart) -> list[EndedLease]:
    start, at = part.queue_id << QUEUE_SHIFT, part.leased_at
    return [
        EndedLease(id_, start + id_, 1, at, at, None, False, False, pushed_at, part.leased_until, part.token)
        for id_, pushed_at in zip(part.ids, part.pushed, strict=True)
    ]


def _keys(parts: Sequence[RangePart]) -> tuple[bytes, bytes, bytes]:
    return (
        ints(part.queue_id for part in parts),
        ints(part.leased_until for part in parts),
        ints(part.first_id for part in parts),
    )


def extend(tx: PostgresTransaction, parts: Sequence[RangePart], until: int) -> list[tuple[int, int]]:
    """Make single leases of messages in ranges, because they end later; return their ids and push times."""
    leases = take_out(tx, parts)
    if leases:
        workers = [part.worker for part in parts for _ in part.ids]
        tx.write(
            "lease_range.extend",
            until,
            ints(lease.row_key for lease in leases),
            blobs([lease.token for lease in leases]),
            ints(lease.leased_at for lease in leases),
            texts(workers),
        )
    return [(lease.id, lease.pushed_at or 0) for lease in leases]
