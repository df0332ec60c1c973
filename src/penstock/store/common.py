"""Code shared by both stores: counter names, lease tokens, limits, cursors and content codes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.commands import AddKey, Settled, SettledAll, SettleItem
from penstock.core.ids import ID_MAX, QUEUE_SHIFT
from penstock.core.model import (
    DAY_MS,
    LEASE_BYTES_MAX,
    Ages,
    Content,
    Delivery,
    Depth,
    QueueOptions,
    Span,
    State,
    StoredMessage,
    Totals,
)
from penstock.errors import (
    Conflict,
    InvalidInput,
    InvariantBroken,
    LeaseLost,
    LeaseTokenRequired,
    QueueFull,
    RateLimited,
    UnknownMessage,
)

GAUGES = ("ready", "scheduled", "leased", "dead", "archived")
TOTALS = ("pushed", "leased", "acked", "nacked", "lapsed", "dead", "expired", "redriven", "removed")
NEVER = 1 << 62

CONTENTS = (Content.BYTES, Content.TEXT, Content.JSON)
CONTENT_CODES = {content: code for code, content in enumerate(CONTENTS)}

TOKEN_BYTES = 16

# How a token settled a message. Stores remember it for a while, so that a repeated request gets the same result.
ACKED, RELEASED, NACKED = 0, 1, 2
# State after a nack; the index in this tuple is added to NACKED.
NACKED_INTO: tuple[State | None, ...] = (None, State.READY, State.SCHEDULED, State.DEAD)
# Rows about settled tokens that a sweep deletes per message that it may move: they are many, and small.
SETTLED_PER_STEP = 10
# How long they are kept: longer than a client repeats a request whose reply was lost.
SETTLED_MINUTES = 5


def new_token(until: int) -> bytes:
    """Return a random token that begins with the expiry time, which is part of the lease's key."""
    return until.to_bytes(6, "big") + os.urandom(10)


def new_tokens(untils: Sequence[int]) -> list[bytes]:
    """Return one token for each expiry time."""
    random = os.urandom(10 * len(untils))
    return [until.to_bytes(6, "big") + random[10 * n : 10 * n + 10] for n, until in enumerate(untils)]


def token_bytes(token: str) -> bytes:
    """Return a token as stored; for any other text, bytes that match no token."""
    try:
        return bytes.fromhex(token)
    except ValueError:
        return b""


# Payload bytes that an export reads at once, and holds in memory while its reader is slow.
EXPORT_BYTES = 256 << 10


def nacked_into(state: State | None) -> int:
    """Return the code under which a nack is remembered."""
    return NACKED + NACKED_INTO.index(state)


def settled_since(now: int) -> tuple[int, int]:
    """Return the first and last minute to search for a settled token, allowing for a clock that stepped back."""
    minute = now // 60_000
    return minute - SETTLED_MINUTES, minute + 1


class ByteBudget:
    """Payload bytes left in one reply. Messages are added while any are left, so the last may exceed it."""

    def __init__(self, left: int = LEASE_BYTES_MAX) -> None:
        self.left = left

    @property
    def is_full(self) -> bool:
        return self.left <= 0

    def fetch(self, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return rows while the budget lasts, without reading further ones. A row ends with its payload."""
        fetched: list[tuple[Any, ...]] = []
        left = self.left
        if left > 0:
            for row in rows:
                fetched.append(row)
                left -= len(row[-1])
                if left <= 0:
                    break
        self.left = left
        return fetched

    def take(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield rows while the budget lasts, without reading further ones. A row ends with its payload."""
        source = iter(rows)
        while self.left > 0 and (row := next(source, None)) is not None:
            self.left -= len(row[-1])
            yield row


def exceeds_budget(rows: Sequence[tuple[Any, ...]], bytes_max: int = LEASE_BYTES_MAX) -> bool:
    """Return True if these rows, which end with their payloads, fill one reply, so that others were left out."""
    return sum(len(row[-1]) for row in rows) >= bytes_max


def next_page(rows: Sequence[tuple[Any, ...]], limit: int, bytes_max: int) -> str | None:
    """Return the cursor of the next page, or None if there is none."""
    return f"{rows[-1][0]}:{rows[-1][1]}" if len(rows) == limit or exceeds_budget(rows, bytes_max) else None


def position(after: str | None, start: tuple[int, ...]) -> tuple[int, ...]:
    """Return the position that a cursor encodes."""
    if after is None:
        return start
    try:
        found = tuple(int(part) for part in after.split(":"))
        if len(found) != len(start) or any(abs(part) > NEVER for part in found):
            raise ValueError
    except ValueError:
        raise InvalidInput(
            f"{after!r} is not a valid cursor", field="after", hint="pass the cursor that an earlier page returned"
        ) from None
    return found


def delivery(
    message_id: int,
    attempts: int,
    created_at: int,
    body: tuple[Any, ...],
    queue: str,
    store_id: int,
    until: int,
    token: str,
) -> Delivery:
    """Return the delivery of a message; `body`: priority, content, key, headers and payload."""
    priority, content, key, headers, payload = body
    return Delivery(
        id=message_id,
        uuid_source=store_id,
        queue=queue,
        payload=payload,
        content=CONTENTS[content],
        priority=priority,
        attempts=attempts,
        created_at=created_at,
        leased_until=until,
        token=token,
        key=key,
        headers=None if headers is None else msgspec.json.decode(headers),
    )


# A lease taken or extended further than this in the future predates a clock that was set back.
CLOCK_SKEW_MS = 5_000
LEASE_CHECK_MS = 1_000
LEASE_CHECK_STEP = 200
QUEUES_CHECKED_MAX = 10_000


class LeaseChecks:
    """Finds leases taken before the clock was set back, which would last longer by that amount.

    Only leases that end later than one taken now are checked, so mostly none. Where consumers request longer leases, a
    few of them are checked each second, in turn.
    """

    def __init__(self) -> None:
        # By queue: time of the last check, and end and id of the last lease checked.
        self._last: dict[int, tuple[int, int, int]] = {}

    def is_due(self, queue_id: int, now: int) -> bool:
        last = self._last.get(queue_id)
        return last is None or abs(now - last[0]) >= LEASE_CHECK_MS

    def start(self, queue_id: int, now: int, lease_ms: int) -> tuple[int, int]:
        """Return the end and id after which to continue."""
        _, *after = self._last.get(queue_id, (0, 0, 0))
        return max((after[0], after[1]), (now + lease_ms + CLOCK_SKEW_MS, ID_MAX))

    def choose(
        self, queue_id: int, now: int, rows: Sequence[tuple[int, int, int]]
    ) -> tuple[list[tuple[int, int]], bool]:
        """Take up to LEASE_CHECK_STEP rows of end, id, and time of the lease or its last extension.

        Returns the ends and ids of leases to expire, and True if the next check should follow at once.
        """
        over = [(until, message_id) for until, message_id, renewed_at in rows if renewed_at > now + CLOCK_SKEW_MS]
        more = bool(over) and len(rows) == LEASE_CHECK_STEP
        if len(self._last) >= QUEUES_CHECKED_MAX:
            self._last.clear()
        until, message_id = rows[-1][:2] if len(rows) == LEASE_CHECK_STEP else (0, 0)
        self._last[queue_id] = (now - LEASE_CHECK_MS if more else now, until, message_id)
        return over, more

    def repeat(self, queue_id: int) -> None:
        """Let the next check follow at once, because not all chosen leases could be ended."""
        self._last.pop(queue_id, None)

    def skip(self, queue_id: int, now: int) -> None:
        """Record that the queue has no lease to check."""
        self.choose(queue_id, now, ())


class Transitions:
    """Counts of transitions in one step, and whether its limit left more to do."""

    __slots__ = ("due", "expired", "lapsed", "more")

    def __init__(self) -> None:
        self.due = self.lapsed = self.expired = 0
        self.more = False


NO_TRANSITIONS = Transitions()


def check_tokens(queue: str, options: QueueOptions, items: Sequence[SettleItem]) -> None:
    """Raise an error for an item without a token if the queue requires one."""
    if options.require_lease_token:
        for item in items:
            if item.token is None:
                raise LeaseTokenRequired(queue, item.id)


KEYS_MAX = 1_000


def check_key_count(command: AddKey, count: int) -> None:
    if count >= KEYS_MAX:
        owner = f"stream {command.stream!r}" if command.queue is None else f"queue {command.queue!r}"
        raise Conflict(f"{owner} already has {KEYS_MAX} keys", hint="remove some")


def require_settled(command: Any, outcome: SettledAll) -> None:
    """Raise an error if an item of a command inside a transaction was not settled."""
    for item, result in zip(command.items, outcome.results, strict=True):
        if result is Settled.STALE:
            raise LeaseLost(item.id)
        if result is Settled.UNKNOWN:
            raise UnknownMessage(command.queue, item.id)


def check_size(queue: str, options: QueueOptions, unfinished: int, count: int) -> None:
    if options.max_size is not None and unfinished + count > options.max_size:
        raise queue_full(queue, unfinished, options.max_size)


def queue_full(queue: str, unfinished: int, max_size: int) -> QueueFull:
    return QueueFull(f"queue {queue!r} is full ({unfinished} of at most {max_size} messages)", retry_after_ms=1_000)


def tokens_left(queue: str, options: QueueOptions, tokens: float | None, elapsed_ms: int, count: int) -> float:
    """Return the tokens of the rate limiter after a push of `count` messages.

    A batch larger than the burst is accepted when the bucket is full, and leaves it negative.
    """
    assert options.push_rate is not None
    burst = options.push_burst or max(1, int(options.push_rate))
    tokens = burst if tokens is None else min(burst, tokens + abs(elapsed_ms) * options.push_rate / 1000)
    lacking = min(count, burst) - tokens
    if lacking > 0:
        raise rate_limited(queue, options.push_rate, lacking)
    return tokens - count


def rate_limited(queue: str, push_rate: float, lacking: float) -> RateLimited:
    # With a tiny rate the delay would overflow an integer.
    wait_ms = min(lacking * 1000 / push_rate, DAY_MS)
    return RateLimited(
        f"queue {queue!r} accepts at most {push_rate:g} messages per second", retry_after_ms=int(wait_ms) + 1
    )


def ages_of(candidates: Iterable[tuple[int, int, int, int]], now: int) -> Ages:
    """Return the ages from rows (rank, available_at, id, created_at) that include the next and the oldest message."""
    found = list(candidates)
    if not found:
        return Ages()
    return Ages(max(0, now - min(found)[3]), max(0, now - min(created_at for *_, created_at in found)))


def depth_of(counts: Sequence[int]) -> Depth:
    """Return the depth from counters in the order of GAUGES and TOTALS."""
    return Depth(*counts[: len(GAUGES)])


def span_of(minute: int, happened: Sequence[int], counts: Sequence[int]) -> Span:
    totals = Totals(**dict(zip(TOTALS, happened[len(GAUGES) :], strict=True)))
    return Span(minute, totals, depth_of(counts))


def add_tracebacks(message: StoredMessage, rows: Iterable[Sequence[Any]]) -> None:
    """Add tracebacks from rows of attempt, time and traceback.

    They are read for single messages only, because a page of them would be large.
    """
    tracebacks = {(attempt, at): traceback for attempt, at, traceback in rows}
    for failure in message.errors:
        failure.traceback = tracebacks.get((failure.attempt, failure.at))


def check_lease(queue_id: int, message_id: int, row_key: int) -> None:
    """Check that a lease belongs to the message whose row it names."""
    if row_key >> QUEUE_SHIFT != queue_id or row_key & ID_MAX != message_id:
        raise InvariantBroken(
            f"the lease of message {message_id} names message {row_key & ID_MAX} of queue {row_key >> QUEUE_SHIFT}"
        )
