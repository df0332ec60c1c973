"""Acknowledges messages by transaction id: finds the message and its lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from penstock.broker.broker import Broker
from penstock.core.commands import Settled, SettledAll, SettleItem
from penstock.core.model import Delivery, State, system_clock
from penstock.errors import LeaseTokenRequired, UnknownQueue
from penstock.server.auth import Principal
from penstock.wire.http_errors import HttpError
from penstock.wire.payloads import TRANSACTION_ID, rfc3339
from penstock.wire.tree import Acknowledged, Acknowledgment

GIVEN_MAX = 20_000
QUEUES_MAX = 10_000
REQUIRED_SECONDS = 2.0
# Queue, message id, and the token of the lease if this process granted it.
LeaseRef = tuple[str, int, str | None]
Group = list[tuple[int, SettleItem]]


def transaction_id(message: Delivery) -> str:
    return (message.headers or {}).get(TRANSACTION_ID, message.uuid)


class Settling:
    """Remembers the latest leases of this process; looks up others in the store."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._given: dict[str, LeaseRef] = {}
        # Cache by queue, for two seconds: True if an ack must carry its token.
        self._required: dict[str, tuple[float, bool]] = {}

    def remember(self, messages: Sequence[Delivery]) -> None:
        given = self._given
        for message in messages:
            name = transaction_id(message)
            given.pop(name, None)
            given[name] = (message.queue, message.id, message.token)
        while len(given) > GIVEN_MAX:
            del given[next(iter(given))]

    async def settle(self, principal: Principal, sent: Sequence[Acknowledgment]) -> list[Acknowledged]:
        leases = await self._find([each.transaction_id for each in sent])
        for each, lease in zip(sent, leases, strict=True):
            if lease is not None and not principal.may("consume", lease[0]):
                raise HttpError(403, "forbidden", f"permission denied for message {each.transaction_id!r}")
        await self._check_tokens(sent, leases)
        results = [Acknowledged(transaction_id=each.transaction_id, status="unknown") for each in sent]
        again = await self._settle(sent, leases, results, range(len(sent)))
        if again:
            # The remembered lease has ended; the message may have another by now.
            leases = [None if lease is None else (*lease[:2], None) for lease in leases]
            await self._settle(sent, leases, results, again)
        return results

    async def _check_tokens(self, sent: Sequence[Acknowledgment], leases: Sequence[LeaseRef | None]) -> None:
        """Raise if the queue requires a token and the ack has none; remembered tokens do not count."""
        for ack, lease in zip(sent, leases, strict=True):
            if ack.lease_token is None and lease is not None and await self._requires_token(lease[0]):
                raise LeaseTokenRequired(lease[0], ack.transaction_id)

    async def _requires_token(self, queue: str) -> bool:
        now = time.monotonic()
        found = self._required.get(queue)
        if found is None or found[0] < now:
            if len(self._required) > QUEUES_MAX:
                self._required.clear()
            info = await self._broker.find_queue(queue)
            required = info is not None and info.options.require_lease_token
            found = self._required[queue] = (now + REQUIRED_SECONDS, required)
        return found[1]

    def forget_options(self, queue: str) -> None:
        """Drop the cached options of a queue after a change."""
        self._required.pop(queue, None)

    async def _find(self, names: Sequence[str]) -> list[LeaseRef | None]:
        leases = [self._given.get(name) for name in names]
        missing = [name for name, lease in zip(names, leases, strict=True) if lease is None]
        if missing:
            found = iter(await self._broker.locate(missing))
            for number, lease in enumerate(leases):
                if lease is None and (located := next(found)) is not None:
                    leases[number] = (*located, None)
        return leases

    async def _settle(
        self,
        sent: Sequence[Acknowledgment],
        leases: Sequence[LeaseRef | None],
        results: list[Acknowledged],
        numbers: Sequence[int],
    ) -> list[int]:
        """Settle these; return the numbers of those to retry with the message's current lease."""
        groups: dict[tuple[str, bool], Group] = {}
        for number in numbers:
            lease, ack = leases[number], sent[number]
            if lease is not None:
                queue, message_id, token = lease
                item = SettleItem(message_id, token if ack.lease_token is None else ack.lease_token, error=ack.error)
                groups.setdefault((queue, ack.status == "completed"), []).append((number, item))
        outcomes = await asyncio.gather(*(self._settle_group(*where, group) for where, group in groups.items()))
        again = []
        for ((_, completed), group), outcome in zip(groups.items(), outcomes, strict=True):
            for position, (number, _) in enumerate(group):
                state = None if completed or not outcome.states else outcome.states[position]
                results[number] = _result(sent[number], outcome.results[position], state)
                lease = leases[number]
                guessed = sent[number].lease_token is None and lease is not None and lease[2] is not None
                if guessed and outcome.results[position] is Settled.STALE:
                    again.append(number)
                else:
                    self._given.pop(sent[number].transaction_id, None)
        return again

    async def _settle_group(self, queue: str, completed: bool, group: Group) -> SettledAll:
        items = [item for _, item in group]
        try:
            if completed:
                return SettledAll(await self._broker.ack(queue, items))
            return await self._broker.nack(queue, items)
        except UnknownQueue:
            return SettledAll([Settled.UNKNOWN] * len(items))


def _result(ack: Acknowledgment, result: Settled, state: State | None) -> Acknowledged:
    name = ack.transaction_id
    if result is not Settled.OK:
        return Acknowledged(transaction_id=name, status="stale" if result is Settled.STALE else "unknown")
    if ack.status == "completed":
        return Acknowledged(transaction_id=name, status="completed", completed_at=rfc3339(system_clock()))
    if state is State.DEAD:
        return Acknowledged(transaction_id=name, status="dead_letter", retry_scheduled=False)
    return Acknowledged(transaction_id=name, status="failed", retry_scheduled=state is not None)
