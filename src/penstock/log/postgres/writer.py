"""Appends to PostgreSQL: concurrent ones share one statement per stream, one round trip and one commit."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import randbits
from time import monotonic
from typing import Any

from penstock.core.commands import Command
from penstock.core.model import system_clock
from penstock.errors import PayloadTooLarge, StoreBusy, UnknownStream
from penstock.log.model import BATCH_BYTES_MAX, AppendOutcome, Payload
from penstock.log.postgres.database import COME_BACK_SECONDS, Database, Lost
from penstock.log.postgres.rows import cut
from penstock.log.record import HEADER_BYTES, encode
from penstock.postgres.pipeline import Rows, Statement, blobs, ints

TRIES = 20
STREAMS_KNOWN_MAX = 100_000
# Result codes of an append.
DONE, UNKNOWN, TIME_PASSED, TOO_LARGE = range(4)


class AppendTo(Command[AppendOutcome]):
    stream: str
    payloads: Sequence[Payload]
    lengths: list[int]

    @property
    def size(self) -> int:
        return sum(self.lengths) + HEADER_BYTES * len(self.lengths)


class _Group:
    """Appends to one stream that are merged: their numbers in the batch, and the commands."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.members: list[tuple[int, AppendTo]] = []
        self.stream_id = 0
        self.mark = 0
        self.time_ms = 0
        self.tries = 0

    def statement(self, database: Database, not_before_ms: int) -> Statement:
        self.time_ms = max(database.clock(), not_before_ms)
        self.mark = randbits(62)
        parts = [encode(command.payloads, self.time_ms, command.lengths) for _, command in self.members]
        data = parts[0][0] if len(parts) == 1 else b"".join(data for data, _ in parts)
        rows = cut(data, [size for _, sizes in parts for size in sizes])
        return database.statement(
            "stream.append",
            database.lock_key(self.stream_id),
            self.stream_id,
            self.time_ms,
            max(max(command.lengths) for _, command in self.members),
            self.mark,
            ints(row.records for row in rows),
            ints(row.sum for row in rows),
            blobs([row.ends for row in rows]),
            blobs([row.data for row in rows]),
        )


class Appender:
    """Executes appends. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids: dict[str, int] = {}
        # Lower bound of the times of future records.
        self._times: dict[str, int] = {}

    def apply(self, commands: Sequence[AppendTo]) -> list[Any]:
        outcomes: list[Any] = [None] * len(commands)
        start = size = 0
        for number, command in enumerate(commands):
            if size + command.size > BATCH_BYTES_MAX and number > start:
                self._execute(commands, start, number, outcomes)
                start, size = number, 0
            size += command.size
        self._execute(commands, start, len(commands), outcomes)
        return outcomes

    def _execute(self, commands: Sequence[AppendTo], start: int, stop: int, outcomes: list[Any]) -> None:
        by_stream: dict[str, _Group] = {}
        for number in range(start, stop):
            name = commands[number].stream
            by_stream.setdefault(name, _Group(name)).members.append((number, commands[number]))
        groups = self._identify(list(by_stream.values()), outcomes)
        abandon = monotonic() + COME_BACK_SECONDS
        while groups:
            groups = self._identify(self._send(groups, outcomes, abandon), outcomes)

    def _identify(self, groups: list[_Group], outcomes: list[Any]) -> list[_Group]:
        """Return the groups whose stream exists, in lock order."""
        unknown = [group.stream for group in groups if group.stream not in self._ids]
        if unknown:
            asked = [self._database.statement("stream.find", name) for name in unknown]
            for name, rows in zip(unknown, self._database.transact(asked), strict=True):
                if rows:
                    if len(self._ids) >= STREAMS_KNOWN_MAX:
                        self._ids.clear()
                    self._ids[name] = rows[0][0]
        found = []
        for group in groups:
            stream_id = self._ids.get(group.stream)
            if stream_id is None:
                self._answer(group, outcomes, UnknownStream(group.stream))
            else:
                group.stream_id = stream_id
                found.append(group)
        return sorted(found, key=lambda group: (self._database.lock_key(group.stream_id), group.stream_id))

    def _send(self, groups: list[_Group], outcomes: list[Any], abandon: float) -> list[_Group]:
        """Execute groups, retrying lost connections; return those that must be sent again."""
        database = self._database
        statements = [group.statement(database, self._times.get(group.stream, 0)) for group in groups]
        lost: Exception | None = None
        sent_ms = system_clock()
        try:
            word = database.word()
            answers = database.transact_once([*statements, *word])
            if not word:
                database.notify_later()
            database.learn_time(sent_ms, answers[0][0][3])
        except Lost as error:
            answers = self._find_committed(groups)
            lost = None if monotonic() < abandon else database.unreachable(error, maybe_done=False)
        left = []
        for group, rows in zip(groups, answers, strict=False):
            if rows:
                left += self._take_in(group, rows[0], outcomes)
            elif lost is None:
                left.append(group)
            else:
                self._answer(group, outcomes, lost)
        return left

    def _find_committed(self, groups: list[_Group]) -> list[Rows]:
        """Find out which groups were committed before a lost connection, by their mark, under the stream's lock."""
        database = self._database
        asked = []
        for group in groups:
            asked.append(database.statement("stream.lock", database.lock_key(group.stream_id)))
            asked.append(database.statement("stream.appended", group.stream_id, group.mark))
        found = database.ask_patiently(asked)[1::2]
        return [[(DONE, first, at, 0)] if first is not None else [] for ((first, _, at),) in found]

    def _take_in(self, group: _Group, answer: tuple[int, ...], outcomes: list[Any]) -> list[_Group]:
        refused, first, at, _ = answer
        if refused == DONE:
            self._times[group.stream] = group.time_ms
            for number, command in group.members:
                outcomes[number] = AppendOutcome(first, first + len(command.lengths) - 1, group.time_ms)
                first += len(command.lengths)
            self._database.listeners.notify(group.stream)
            return []
        group.tries += 1
        if group.tries == TRIES:
            error = StoreBusy(
                f"giving up the append to stream {group.stream!r} after {TRIES} attempts",
                hint="check the servers' clocks",
            )
            self._answer(group, outcomes, error)
            return []
        if refused == UNKNOWN:
            self._ids.pop(group.stream, None)
            self._times.pop(group.stream, None)
        elif refused == TIME_PASSED:
            # Other servers keep appending, so each attempt plans a little further ahead.
            self._times[group.stream] = at + group.tries * (group.tries - 1)
        elif refused == TOO_LARGE:
            self._refuse_large(group, first, outcomes)
        return [group] if group.members else []

    def _refuse_large(self, group: _Group, record_bytes: int, outcomes: list[Any]) -> None:
        for number, command in group.members:
            largest = max(command.lengths)
            if largest > record_bytes:
                outcomes[number] = PayloadTooLarge(
                    f"a record of {largest} bytes", field="records", hint=f"at most {record_bytes}"
                )
        group.members = [(number, command) for number, command in group.members if outcomes[number] is None]

    def _answer(self, group: _Group, outcomes: list[Any], error: Exception) -> None:
        for number, _ in group.members:
            outcomes[number] = error

    def forget(self, name: str) -> None:
        self._ids.pop(name, None)
        self._times.pop(name, None)
