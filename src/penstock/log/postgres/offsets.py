"""Positions of consumers, one row each. Concurrent commits share a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.commands import Command
from penstock.errors import (
    BatchTooLarge,
    OffsetBeyondEnd,
    PenstockError,
    PositionMovesBack,
    UnknownConsumer,
    UnknownStream,
)
from penstock.log.consumers import Kind
from penstock.log.model import CONSUMERS_MAX, Consumer, StreamOptions, decode_stream_options
from penstock.log.postgres.database import Database
from penstock.log.retention import is_expired

# Result codes of a move.
DONE, UNKNOWN, BEYOND_END, BACK, TOO_MANY = range(5)


class OffsetMove(Command[Consumer]):
    """Moves a consumer to an offset, or only records its activity."""

    stream: str
    consumer: str
    offset: int | None
    force: bool = False
    kind: Kind = "consumer"


class Positions:
    def __init__(self, database: Database) -> None:
        self._database = database

    def apply(self, moves: Sequence[OffsetMove]) -> list[Any]:
        # All servers use the same order, which avoids deadlocks.
        order = sorted(range(len(moves)), key=lambda number: (moves[number].stream, moves[number].consumer))
        asked = [
            self._database.statement(
                "stream.move_consumer", move.stream, move.consumer, move.offset, move.force, move.kind, CONSUMERS_MAX
            )
            for move in (moves[number] for number in order)
        ]
        outcomes: list[Any] = [None] * len(moves)
        for number, (row,) in zip(order, self._database.transact(asked), strict=True):
            outcomes[number] = _outcome(moves[number], row)
        return outcomes

    def all(self, stream: str, consumer: str | None = None) -> tuple[list[Consumer], StreamOptions, int]:
        """Return the consumers of a stream, or one of them, with the stream's options and the time."""
        rows = self._database.ask("stream.consumers", stream, consumer)
        if not rows:
            raise UnknownStream(stream)
        options = decode_stream_options(rows[0][2])
        found = []
        for first, next_offset, _, name, kind, position, seen_ms, created_ms, now_ms in rows:
            if name is not None:
                each = Consumer(name=name, offset=position, seen_ms=seen_ms, created_ms=created_ms, kind=kind)
                lag = _lag(position, first, next_offset)
                found.append(msgspec.structs.replace(each, lag=lag, expired=is_expired(each, options, now_ms)))
        return found, options, rows[0][8]

    def get(self, stream: str, consumer: str) -> Consumer:
        found, _, _ = self.all(stream, consumer)
        if not found:
            raise UnknownConsumer(stream, consumer)
        return found[0]

    def forget(self, stream: str, consumer: str) -> None:
        ((streams, gone),) = self._database.ask("stream.forget", stream, consumer)
        if not streams:
            raise UnknownStream(stream)
        if not gone:
            raise UnknownConsumer(stream, consumer)


def _outcome(move: OffsetMove, row: tuple[Any, ...]) -> Consumer | PenstockError:
    refused, first, next_offset, kind, reached, seen_ms, created_ms = row
    if refused == UNKNOWN:
        return UnknownStream(move.stream)
    if refused == BEYOND_END:
        return OffsetBeyondEnd(move.stream, move.offset or 0, next_offset)
    if refused == BACK:
        return PositionMovesBack(move.stream, move.consumer, -1 if move.offset is None else move.offset, reached)
    if refused == TOO_MANY:
        return BatchTooLarge(
            f"stream {move.stream!r} already has {CONSUMERS_MAX} consumers", field="consumer", hint="delete unused ones"
        )
    lag = _lag(reached, first, next_offset)
    return Consumer(name=move.consumer, offset=reached, seen_ms=seen_ms, created_ms=created_ms, kind=kind, lag=lag)


def _lag(position: int | None, first: int, next_offset: int) -> int:
    after = first if position is None else max(position + 1, first)
    return max(0, next_offset - after)
