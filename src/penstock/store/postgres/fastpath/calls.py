"""Fast path: a batch of plain pushes, leases or acks as one call of a database function, in one round trip.

Batches that are not eligible (`eligibility`), and commands that the function cannot finish, run as a normal transaction
(`dispatch`).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from copy import copy
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from penstock.core.commands import Ack, Command, Lease, Leased, Push, PushOutcome, Settled, SettledAll
from penstock.core.ids import ID_MAX, message_uuid
from penstock.core.latency import SERVICE, TOTAL, WAIT
from penstock.core.model import LEASE_BYTES_MAX, Delivery, PushReceipt, system_clock
from penstock.postgres.pipeline import PipelinedConnection, Rows, Statement, blobs, ints, texts
from penstock.store.common import CONTENT_CODES, CONTENTS, NEVER, token_bytes
from penstock.store.postgres.context import MARK_BITS, SLACK_MS, CachedQueue, StoreContext
from penstock.store.postgres.settlement import text
from penstock.store.postgres.transaction import ALIVE, LEASING, PUSHING
from penstock.store.postgres.transitions import PATIENCE_FACTOR, PATIENCE_MS

# How long leases of a queue skip the fast path after it could not serve one.
SKIP_SECONDS = 0.05

CommandT = TypeVar("CommandT", Push, Lease, Ack)


class FunctionCall(Generic[CommandT]):
    """Commands of a batch for one queue. The outcome stays None for commands that need a normal transaction."""

    kinds: tuple[int, ...]
    """Kinds of locks it takes."""

    def __init__(self, context: StoreContext, known: CachedQueue) -> None:
        self.context = context
        self.known = known
        self.commands: list[CommandT] = []
        # Position of each command in the batch.
        self.positions: list[int] = []
        self.outcomes: list[Any] = []

    def wakes(self) -> bool:
        """Return True if consumers may wait for this change."""
        return False

    def statement(self, locks: Sequence[int | None]) -> Statement:
        raise NotImplementedError

    def answered(self, rows: Rows) -> None:
        raise NotImplementedError

    @property
    def locks(self) -> list[int]:
        """Lock keys; the first lock is shared."""
        return [self.context.lock_key(kind, self.known.id) for kind in self.kinds]

    def scan_from(self) -> tuple[int, int]:
        """Return the times from which to scan for due messages and expired leases.

        Mostly the time of the last scan, and sometimes the floor, for rows that became visible late. A long-lived
        snapshot keeps deleted index entries, so a full scan would pass over all of them each time.
        """
        context = self.context
        context.rescan_if_due()
        last, self._scanned_at = context.scanned.get(self.known.id, (-1, -1))
        self._is_short_scan = self._scanned_at <= context.now() < self._scanned_at + SLACK_MS
        return (last, last) if self._is_short_scan else context.floor(self.known.id)

    def found_nothing_due(self, now: int) -> None:
        if not self._is_short_scan:
            self.context.raise_floor(self.known.id, now, NEVER, NEVER)
        self.context.scanned[self.known.id] = (now, self._scanned_at if self._is_short_scan else now)

    def on_reply(self, now: int) -> None:
        self.context.ahead_ms = now - system_clock()
        self.context.uncompacted_counters += 1

    def rest(self, command: CommandT) -> CommandT:
        """Return the part of a command that needs a normal transaction."""
        return command

    def joined(self, command: CommandT, rest: CommandT, outcome: Any) -> Any:
        """Return a command's outcome, completed by that of the rest."""
        return outcome


class PushCall(FunctionCall[Push]):
    kinds = (ALIVE, PUSHING)

    def wakes(self) -> bool:
        return True

    def statement(self, locks: Sequence[int | None]) -> Statement:
        self.mark = self.context.now() << MARK_BITS | int.from_bytes(os.urandom(3)) >> 4
        messages = [message for command in self.commands for message in command.messages]
        contents = [CONTENT_CODES[message.content] for message in messages]
        headers: list[str | None] = []
        if any(message.headers is not None for message in messages):
            headers = [
                None if message.headers is None else msgspec.json.encode(message.headers).decode()
                for message in messages
            ]
        params = (
            *locks,
            self.mark,
            self.known.id,
            self.known.name,
            self.known.text,
            *self.scan_from(),
            ints(contents) if any(contents) else ints(()),
            texts(headers),
            blobs([message.payload for message in messages]),
        )
        return Statement(self.context.sql["fastpath.push"], params)

    def answered(self, rows: Rows) -> None:
        ((answer,),) = rows
        if answer is None:
            self.outcomes = [None] * len(self.commands)
            return
        message_id, now = answer
        self.on_reply(now)
        self.found_nothing_due(now)
        store_id = self.context.store_id
        for command in self.commands:
            ids = range(message_id, message_id + len(command.messages))
            self.outcomes.append(PushOutcome([PushReceipt(each, now, store_id) for each in ids]))
            message_id = ids.stop


class LeaseCall(FunctionCall[Lease]):
    kinds = (ALIVE, LEASING)

    def statement(self, locks: Sequence[int | None]) -> Statement:
        context, commands = self.context, self.commands
        self.begun = time.monotonic()
        self.patient = self.begun < context.patient_until
        default_ms = self.known.options.lease_ms
        self.lasting = [default_ms if each.lease_ms is None else each.lease_ms for each in commands]
        random = struct.unpack(f">{'Hq' * len(commands)}", os.urandom(10 * len(commands)))
        self.high, self.low = random[::2], random[1::2]
        self.slots = [number for number, each in enumerate(commands, 1) for _ in range(each.limit)]
        params = (
            *locks,
            self.known.id,
            self.known.name,
            self.known.text,
            *self.scan_from(),
            self.patient,
            ints(self.slots),
            ints(self.lasting),
            ints(self.high),
            ints(self.low),
            texts([None if each.worker is None else text(each.worker) for each in commands]),
        )
        return Statement(context.sql["fastpath.lease"], params)

    def answered(self, rows: Rows) -> None:
        context, known = self.context, self.known
        if not rows:
            context.no_fastpath_until[known.id] = time.monotonic() + SKIP_SECONDS
            self.outcomes = [None] * len(self.commands)
            return
        now = rows[0][0]
        self.on_reply(now)
        self.found_nothing_due(now)
        wake_at, more = None, False
        if rows[-1][1] is None:
            wake_at = self._wake_at(now, rows.pop()[2])
            more = sum(len(row[-1]) for row in rows) >= LEASE_BYTES_MAX
        messages: list[list[Delivery]] = [[] for _ in self.commands]
        tokens = [(now + lasting, self._token(number, now)) for number, lasting in enumerate(self.lasting)]
        store_id, name = context.store_id, known.name
        for slot, (_, row_key, created_at, priority, content, key, headers, payload) in zip(
            self.slots, rows, strict=False
        ):
            until, token = tokens[slot - 1]
            message_id = row_key & ID_MAX
            messages[slot - 1].append(
                Delivery(
                    id=message_id,
                    uuid=message_uuid(message_id, created_at, store_id),
                    queue=name,
                    payload=payload,
                    content=CONTENTS[content],
                    priority=priority,
                    attempts=1,
                    created_at=created_at,
                    leased_until=until,
                    token=token,
                    key=key,
                    headers=None if headers is None else msgspec.json.decode(headers),
                )
            )
        context.latencies.add(known.id, WAIT, [now - row[2] for row in rows])
        self.outcomes = [Leased(mine, more=more, wake_at=None if mine else wake_at) for mine in messages]

    def _token(self, number: int, now: int) -> str:
        until = now + self.lasting[number]
        return f"{until << 16 | self.high[number]:016x}{self.low[number] & (1 << 64) - 1:016x}"

    def _wake_at(self, now: int, wake_at: int | None) -> int | None:
        if self.patient:
            return now + PATIENCE_MS
        took = time.monotonic() - self.begun
        if took > self.context.slow_seconds:
            self.context.patient_until = time.monotonic() + PATIENCE_FACTOR * took
        return wake_at


class AckCall(FunctionCall[Ack]):
    kinds = (ALIVE,)

    def wakes(self) -> bool:
        return self.known.options.max_in_flight is not None

    def statement(self, locks: Sequence[int | None]) -> Statement:
        items = [item for command in self.commands for item in command.items]
        self.count = len(items)
        tokens = [token_bytes(item.token or "") for item in items]
        params = (
            *locks,
            self.known.id,
            self.known.name,
            self.known.text,
            ints(int.from_bytes(token[:6]) for token in tokens),
            ints(item.id for item in items),
            blobs(tokens),
        )
        return Statement(self.context.sql["fastpath.ack"], params)

    def answered(self, rows: Rows) -> None:
        ((answer,),) = rows
        now, count = (0, 0) if answer is None else answer[:2]
        self.ended: frozenset[int] = frozenset(answer[2 : 2 + count]) if count else frozenset()
        if count:
            self.on_reply(now)
            self.context.latencies.add(self.known.id, SERVICE, [now - at for at in answer[2 + count : 2 + 2 * count]])
            self.context.latencies.add(self.known.id, TOTAL, [now - at for at in answer[2 + 2 * count :]])
        for command in self.commands:
            done = count == self.count or all(item.id in self.ended for item in command.items)
            self.outcomes.append(SettledAll([Settled.OK] * len(command.items)) if done else None)

    def rest(self, command: Ack) -> Ack:
        return Ack(queue=command.queue, items=[item for item in command.items if item.id not in self.ended])

    def joined(self, command: Ack, rest: Ack, outcome: SettledAll) -> SettledAll:
        why = {item.id: result for item, result in zip(rest.items, outcome.results, strict=True)}
        return SettledAll([why.get(item.id, Settled.OK) for item in command.items])


class FastBatch:
    """A batch on the fast path."""

    def __init__(self, calls: list[FunctionCall[Any]], count: int) -> None:
        self.calls = calls
        self._count = count

    @property
    def wakes(self) -> set[str]:
        """Queues whose consumers may wait for this batch."""
        return {call.known.name for call in self.calls if call.wakes()}

    @property
    def durable(self) -> bool:
        return bool(self.calls[0].commands[0].durable)

    def statements(self, context: StoreContext, notify: Sequence[Statement]) -> list[Statement]:
        """Return all calls and the notifications, for one transaction."""
        start = [] if context.clock is None else [Statement(context.sql["begin.move_clock"], (context.clock(),))]
        if len(self.calls) == 1:
            calls = [self.calls[0].statement(self.calls[0].locks)]
        else:
            # All locks first, kind by kind: the order that every transaction uses.
            start.append(Statement(context.sql["begin.enter"], (ints(self._locks()),)))
            calls = [call.statement([None] * len(call.kinds)) for call in self.calls]
        self._first = len(start)
        return [*start, *calls, *notify]

    def answered(self, answers: list[Rows]) -> None:
        for call, rows in zip(self.calls, answers[self._first :], strict=False):
            call.answered(rows)

    @property
    def is_complete(self) -> bool:
        """True if no command needs a normal transaction."""
        return all(None not in call.outcomes for call in self.calls)

    def _locks(self) -> list[int]:
        by_kind = zip(*(call.locks for call in self.calls), strict=True)
        keys = [sorted(set(found)) for found in by_kind]
        return [-key for key in keys[0]] + [key for found in keys[1:] for key in found]

    def recover_outcomes(self, wire: PipelinedConnection, sql: dict[str, bytes]) -> bool:
        """After an attempt whose reply was lost, return True if it was committed; otherwise it is to be repeated."""
        committed = False
        for call in self.calls:
            if isinstance(call, PushCall):
                claimed, became = wire.run(
                    [Statement(sql["fastpath.claim"], (call.mark,)), Statement(sql["fastpath.became"], (call.mark,))]
                )
                if not claimed and became[0][0] is not None:
                    call.answered([(became[0],)])
                    committed = True
        if committed:
            # All calls were one transaction: the others were not executed.
            for call in self.calls:
                call.outcomes = call.outcomes or [None] * len(call.commands)
        return committed

    def outcomes(self, run_transaction: Callable[[list[Command[Any]]], list[Any]]) -> list[Any]:
        found: list[Any] = [None] * self._count
        rest: list[tuple[int, Any, Any, Any]] = []
        for call in self.calls:
            for position, command, outcome in zip(call.positions, call.commands, call.outcomes, strict=True):
                found[position] = outcome
                if outcome is None:
                    rest.append((position, call, command, call.rest(command)))
        if not rest:
            return found
        rest.sort(key=itemgetter(0))
        try:
            others = run_transaction([left for _, _, _, left in rest])
        except Exception as error:
            if len(rest) == self._count:
                raise
            # None of these were committed; the other outcomes stand.
            others = [copy(error) for _ in rest]
        for (position, call, command, left), outcome in zip(rest, others, strict=True):
            found[position] = outcome if isinstance(outcome, BaseException) else call.joined(command, left, outcome)
        return found
