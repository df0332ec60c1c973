"""The short way: a batch of plain pushes, leases or acks as one call of a function in the database, one round trip.

What the function finds in its way, and what is not plain to begin with (`plain`), takes the long way (`batch`).
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

LONG_WAY_SECONDS = 0.05
"""How long leases of a queue take the long way once something was in the way of the short one."""

CommandT = TypeVar("CommandT", Push, Lease, Ack)


class FunctionCall(Generic[CommandT]):
    """The commands of a batch that are about one queue. Outcomes stay None for those that take the long way."""

    kinds: tuple[int, ...]
    """Of its locks."""

    def __init__(self, context: StoreContext, known: CachedQueue) -> None:
        self.context = context
        self.known = known
        self.commands: list[CommandT] = []
        self.places: list[int] = []
        """Of the commands, in the batch."""
        self.outcomes: list[Any] = []

    def wakes(self) -> bool:
        """Whether others may wait for what it does."""
        return False

    def statement(self, locks: Sequence[int | None]) -> Statement:
        raise NotImplementedError

    def answered(self, rows: Rows) -> None:
        raise NotImplementedError

    @property
    def locks(self) -> list[int]:
        """Their keys; the first is shared."""
        return [self.context.lock_key(kind, self.known.id) for kind in self.kinds]

    def look(self) -> tuple[int, int]:
        """From where on to look for what is due: mostly from the last look, and now and then for what came later than
        its time. A held snapshot keeps all that was there in the way of every look."""
        context = self.context
        context.look_wide_now_and_then()
        last, self._looked_at = context.looked.get(self.known.id, (-1, -1))
        self._briefly = self._looked_at <= context.now() < self._looked_at + SLACK_MS
        return (last, last) if self._briefly else context.floor(self.known.id)

    def found_nothing_due(self, now: int) -> None:
        if not self._briefly:
            self.context.raise_floor(self.known.id, now, NEVER, NEVER)
        self.context.looked[self.known.id] = (now, self._looked_at if self._briefly else now)

    def heard(self, now: int) -> None:
        self.context.ahead_ms = now - system_clock()
        self.context.uncompacted_counters += 1

    def rest(self, command: CommandT) -> CommandT:
        """What of a command takes the long way."""
        return command

    def joined(self, command: CommandT, rest: CommandT, outcome: Any) -> Any:
        """A command's outcome, of which the long way brought the rest."""
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
            *self.look(),
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
        self.heard(now)
        self.found_nothing_due(now)
        salt = self.context.salt
        for command in self.commands:
            ids = range(message_id, message_id + len(command.messages))
            self.outcomes.append(PushOutcome([PushReceipt(each, now, salt) for each in ids]))
            message_id = ids.stop


class LeaseCall(FunctionCall[Lease]):
    kinds = (ALIVE, LEASING)

    def statement(self, locks: Sequence[int | None]) -> Statement:
        context, commands = self.context, self.commands
        self.begun = time.monotonic()
        self.patient = self.begun < context.patient_until
        default_ms = self.known.options.lease_ms
        self.lasting = [default_ms if each.lease_ms is None else each.lease_ms for each in commands]
        chance = struct.unpack(f">{'Hq' * len(commands)}", os.urandom(10 * len(commands)))
        self.high, self.low = chance[::2], chance[1::2]
        self.slots = [number for number, each in enumerate(commands, 1) for _ in range(each.limit)]
        params = (
            *locks,
            self.known.id,
            self.known.name,
            self.known.text,
            *self.look(),
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
            context.long_way[known.id] = time.monotonic() + LONG_WAY_SECONDS
            self.outcomes = [None] * len(self.commands)
            return
        now = rows[0][0]
        self.heard(now)
        self.found_nothing_due(now)
        wake_at, more = None, False
        if rows[-1][1] is None:
            wake_at = self._wake_at(now, rows.pop()[2])
            more = sum(len(row[-1]) for row in rows) >= LEASE_BYTES_MAX
        messages: list[list[Delivery]] = [[] for _ in self.commands]
        tokens = [(now + lasting, self._token(number, now)) for number, lasting in enumerate(self.lasting)]
        salt, name = context.salt, known.name
        for slot, (_, place, created_at, priority, content, key, headers, payload) in zip(
            self.slots, rows, strict=False
        ):
            until, token = tokens[slot - 1]
            message_id = place & ID_MAX
            messages[slot - 1].append(
                Delivery(
                    id=message_id,
                    uuid=message_uuid(message_id, created_at, salt),
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
            self.heard(now)
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
    """A batch on the short way."""

    def __init__(self, calls: list[FunctionCall[Any]], count: int) -> None:
        self.calls = calls
        self._count = count

    @property
    def wakes(self) -> set[str]:
        """Queues for which others may wait."""
        return {call.known.name for call in self.calls if call.wakes()}

    @property
    def durable(self) -> bool:
        return bool(self.calls[0].commands[0].durable)

    def statements(self, context: StoreContext, word: Sequence[Statement]) -> list[Statement]:
        """All calls, for one transaction, and the word to those who wait elsewhere."""
        start = [] if context.clock is None else [Statement(context.sql["begin.move_clock"], (context.clock(),))]
        if len(self.calls) == 1:
            asked = [self.calls[0].statement(self.calls[0].locks)]
        else:
            # All locks first, kind by kind, as everyone takes them.
            start.append(Statement(context.sql["begin.enter"], (ints(self._locks()),)))
            asked = [call.statement([None] * len(call.kinds)) for call in self.calls]
        self._first = len(start)
        return [*start, *asked, *word]

    def answered(self, answers: list[Rows]) -> None:
        for call, rows in zip(self.calls, answers[self._first :], strict=False):
            call.answered(rows)

    @property
    def whole(self) -> bool:
        """Whether nothing is left for the long way."""
        return all(None not in call.outcomes for call in self.calls)

    def _locks(self) -> list[int]:
        by_kind = zip(*(call.locks for call in self.calls), strict=True)
        keys = [sorted(set(found)) for found in by_kind]
        return [-key for key in keys[0]] + [key for found in keys[1:] for key in found]

    def what_became(self, wire: PipelinedConnection, sql: dict[str, bytes]) -> bool:
        """After a try whose answer was lost: whether the outcomes are known now. Else it is to be tried again."""
        kept = False
        for call in self.calls:
            if isinstance(call, PushCall):
                claimed, became = wire.run(
                    [Statement(sql["fastpath.claim"], (call.mark,)), Statement(sql["fastpath.became"], (call.mark,))]
                )
                if not claimed and became[0][0] is not None:
                    call.answered([(became[0],)])
                    kept = True
        if kept:
            # They were one transaction: the others were refused.
            for call in self.calls:
                call.outcomes = call.outcomes or [None] * len(call.commands)
        return kept

    def outcomes(self, long_way: Callable[[list[Command[Any]]], list[Any]]) -> list[Any]:
        found: list[Any] = [None] * self._count
        rest: list[tuple[int, Any, Any, Any]] = []
        for call in self.calls:
            for place, command, outcome in zip(call.places, call.commands, call.outcomes, strict=True):
                found[place] = outcome
                if outcome is None:
                    rest.append((place, call, command, call.rest(command)))
        if not rest:
            return found
        rest.sort(key=itemgetter(0))
        try:
            others = long_way([left for _, _, _, left in rest])
        except Exception as error:
            if len(rest) == self._count:
                raise
            # Nothing of these was kept; the others' outcomes stand.
            others = [copy(error) for _ in rest]
        for (place, call, command, left), outcome in zip(rest, others, strict=True):
            found[place] = outcome if isinstance(outcome, BaseException) else call.joined(command, left, outcome)
        return found
