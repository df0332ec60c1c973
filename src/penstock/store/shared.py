"""What stores have in common: the names of counters, tokens, limits, cursors, and how content is written down."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.commands import SettleItem
from penstock.errors import InvalidInput, LeaseTokenRequired, QueueFull, RateLimited
from penstock.model import DAY_MS, LEASE_BYTES_MAX, Ages, Content, Depth, Message, QueueOptions, Span, Totals
from penstock.options import options_decoder

GAUGES = ("ready", "scheduled", "leased", "dead", "archived")
TOTALS = ("pushed", "leased", "acked", "nacked", "lapsed", "dead", "expired", "redriven", "removed")
NEVER = 1 << 62

CONTENTS = (Content.BYTES, Content.TEXT, Content.JSON)
CONTENT_CODES = {content: code for code, content in enumerate(CONTENTS)}

TOKEN_BYTES = 16


decode_options = options_decoder(QueueOptions)


def new_token(until: int) -> bytes:
    """A secret that begins with the time under which its lease is found."""
    return until.to_bytes(6, "big") + os.urandom(10)


def new_tokens(untils: Sequence[int]) -> list[bytes]:
    """As `new_token`, one for each."""
    chance = os.urandom(10 * len(untils))
    return [until.to_bytes(6, "big") + chance[10 * n : 10 * n + 10] for n, until in enumerate(untils)]


def token_bytes(token: str) -> bytes:
    """A token as it is stored; text that never was one matches nothing."""
    try:
        return bytes.fromhex(token)
    except ValueError:
        return b""


EXPORT_BYTES = 256 << 10
"""Of payloads that an export reads at once, and keeps for as long as its reader is slow."""


class Room:
    """What one answer may still hold. Messages go into it while there is any, so the last may be too large for it."""

    def __init__(self, left: int = LEASE_BYTES_MAX) -> None:
        self.left = left

    @property
    def is_full(self) -> bool:
        return self.left <= 0

    def take(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The first rows; none is read that does not go. A row ends with its payload."""
        source = iter(rows)
        while self.left > 0 and (row := next(source, None)) is not None:
            self.left -= len(row[-1])
            yield row


def fills_an_answer(rows: Sequence[tuple[Any, ...]], bytes_max: int = LEASE_BYTES_MAX) -> bool:
    """Whether rows were left out because these, which end with their payloads, are all that one answer may hold."""
    return sum(len(row[-1]) for row in rows) >= bytes_max


def next_page(rows: Sequence[tuple[Any, ...]], limit: int, bytes_max: int) -> str | None:
    """A cursor, if there is more to see."""
    return f"{rows[-1][0]}:{rows[-1][1]}" if len(rows) == limit or fills_an_answer(rows, bytes_max) else None


def position(after: str | None, start: tuple[int, ...]) -> tuple[int, ...]:
    """What a cursor says."""
    if after is None:
        return start
    try:
        found = tuple(int(part) for part in after.split(":"))
        if len(found) != len(start) or any(abs(part) > NEVER for part in found):
            raise ValueError
    except ValueError:
        raise InvalidInput(f"{after!r} is not a cursor that an earlier page returned", field="after") from None
    return found


class Moved:
    """What a step of time moved, and whether its bound left more to do."""

    __slots__ = ("due", "expired", "lapsed", "more")

    def __init__(self) -> None:
        self.due = self.lapsed = self.expired = 0
        self.more = False


NOTHING_MOVED = Moved()


def check_tokens(queue: str, options: QueueOptions, items: Sequence[SettleItem]) -> None:
    """Refuse to settle a message's current lease without its token, where the queue requires one."""
    if options.require_lease_token:
        for item in items:
            if item.token is None:
                raise LeaseTokenRequired(queue, item.id)


def check_size(queue: str, options: QueueOptions, undone: int, count: int) -> None:
    if options.max_size is not None and undone + count > options.max_size:
        raise queue_full(queue, undone, options.max_size)


def queue_full(queue: str, undone: int, max_size: int) -> QueueFull:
    return QueueFull(f"queue {queue!r} holds {undone} of at most {max_size} messages", retry_after_ms=1_000)


def tokens_left(queue: str, options: QueueOptions, tokens: float | None, elapsed_ms: int, count: int) -> float:
    """Of a queue's rate, after so many messages. A batch larger than the burst passes when the bucket is full, and
    leaves a debt."""
    assert options.push_rate is not None
    burst = options.push_burst or max(1, int(options.push_rate))
    tokens = burst if tokens is None else min(burst, tokens + abs(elapsed_ms) * options.push_rate / 1000)
    lacking = min(count, burst) - tokens
    if lacking > 0:
        raise rate_limited(queue, options.push_rate, lacking)
    return tokens - count


def rate_limited(queue: str, push_rate: float, lacking: float) -> RateLimited:
    # A rate may be as small as a number can be, and the wait then longer than one.
    wait_ms = min(lacking * 1000 / push_rate, DAY_MS)
    return RateLimited(f"queue {queue!r} takes {push_rate:g} messages a second", retry_after_ms=int(wait_ms) + 1)


def ages_of(candidates: Iterable[tuple[int, int, int, int]], now: int) -> Ages:
    """Ages from ready messages (rank, available_at, id, created_at) that include the next and the oldest one."""
    found = list(candidates)
    if not found:
        return Ages()
    return Ages(max(0, now - min(found)[3]), max(0, now - min(created_at for *_, created_at in found)))


def depth_of(counts: Sequence[int]) -> Depth:
    """Of counters in the order of GAUGES and TOTALS."""
    return Depth(*counts[: len(GAUGES)])


def span_of(minute: int, happened: Sequence[int], counts: Sequence[int]) -> Span:
    totals = Totals(**dict(zip(TOTALS, happened[len(GAUGES) :], strict=True)))
    return Span(minute, totals, depth_of(counts))


def add_tracebacks(message: Message, rows: Iterable[Sequence[Any]]) -> None:
    """Rows of attempt, time and traceback; read for one message only, because a page of them would be large."""
    tracebacks = {(attempt, at): traceback for attempt, at, traceback in rows}
    for failure in message.errors:
        failure.traceback = tracebacks.get((failure.attempt, failure.at))
