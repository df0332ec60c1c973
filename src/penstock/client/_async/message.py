"""A message in your hands: look at it, then say what became of it.

This is asynchronous; its twin in `penstock.client._sync` is made from it by tools/unasync.py.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.client import payloads
from penstock.client.failures import describe, format_traceback
from penstock.client.types import Seconds, milliseconds, visible_key
from penstock.core.commands import Settled, SettleItem
from penstock.core.limits import check_flag
from penstock.core.model import LEASE_MS_MAX
from penstock.core.model import Delivery as Lease
from penstock.errors import DeadLetter, Discard, LeaseLost, PenstockError, WrongType

if TYPE_CHECKING:
    from penstock.client._async.client import Client

_UNREAD = object()


class LeasedMessage:
    """A message leased to you until `leased_until` (milliseconds since 1970).

    In a `with` block a clean exit acks it; an exception nacks it with its text, and goes on up::

        async with message:
            await send(message.payload)
    """

    __slots__ = ("__weakref__", "_client", "_lease", "_payload", "lost", "settled")

    def __init__(self, client: Client, lease: Lease) -> None:
        self._client = client
        self._lease = lease
        self._payload: Any = _UNREAD
        self.settled = False
        """Whether it was acked, nacked or given back."""
        self.lost = False
        """Whether the lease is known to be over: another consumer may have the message."""

    @property
    def id(self) -> int:
        return self._lease.id

    @property
    def uuid(self) -> str:
        return self._lease.uuid

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._lease.queue

    @property
    def payload(self) -> Any:
        """What was pushed."""
        if self._payload is _UNREAD:
            self._payload = payloads.decode(self._lease.payload, self._lease.content)
        return self._payload

    @property
    def priority(self) -> int:
        return self._lease.priority

    @property
    def attempts(self) -> int:
        """Deliveries so far, this one included."""
        return self._lease.attempts

    @property
    def created_at(self) -> int:
        return self._lease.created_at

    @property
    def leased_until(self) -> int:
        """As of the lease; extending it is not shown here."""
        return self._lease.leased_until

    @property
    def token(self) -> str:
        return self._lease.token

    @property
    def key(self) -> str | None:
        return visible_key(self._lease.key)

    @property
    def headers(self) -> dict[str, str]:
        return self._lease.headers or {}

    def item(self) -> SettleItem:
        """What proves that this message is yours to settle."""
        return SettleItem(self._lease.id, self._lease.token)

    def failed_item(
        self, error: str | BaseException | None, delay: Seconds | None, dead: bool = False, discard: bool = False
    ) -> SettleItem:
        """The same, with what went wrong and what is to become of the message."""
        item = self.item()
        item.delay_ms = None if delay is None else milliseconds("delay", delay)
        item.error = describe(error)
        item.traceback = format_traceback(error)
        check_flag("dead", dead)
        check_flag("discard", discard)
        item.dead = dead or isinstance(error, DeadLetter)
        item.discard = discard or isinstance(error, Discard)
        return item

    async def ack(self) -> None:
        """Done. LeaseLost when the message is no longer yours."""
        self._end(await self._settle("ack", self.item()))

    async def nack(
        self,
        error: str | BaseException | None = None,
        *,
        delay: Seconds | None = None,
        dead: bool = False,
        discard: bool = False,
    ) -> None:
        """Failed: comes back after `delay` seconds (default: the queue's back-off), or dies.

        With `dead` it is a dead letter now, whatever attempts are left; with `discard` it is dropped instead. An
        exception's traceback is kept with its text.
        """
        self._end(await self._settle("nack", self.failed_item(error, delay, dead, discard)))

    async def release(self) -> None:
        """Give it back untouched: it keeps its place, and no attempt is used up."""
        self._end(await self._settle("release", self.item()))

    async def extend(self, lease: Seconds | None = None) -> None:
        """Keep it for `lease` seconds from now (default: the queue's)."""
        lease_ms = None if lease is None else milliseconds("lease", lease, 1, LEASE_MS_MAX)
        results = await self._client.transport.settle("extend", self.queue, [self.item()], lease_ms=lease_ms)
        self._check(results[0])

    def _settle(self, verb: str, item: SettleItem) -> Awaitable[Settled]:
        return self._client.transport.settle_one(verb, self._lease.queue, item)

    def _end(self, result: Settled) -> None:
        """Note that it was settled; raise if that changed nothing."""
        self._client.keeper.end(self)
        self._check(result)

    def _check(self, result: Settled) -> None:
        if result is not Settled.OK:
            self.lost = True
            raise LeaseLost(self.id)

    async def __aenter__(self) -> LeasedMessage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            await self.ack()
            return
        # The block's own error matters more than what becomes of the lease, which ends by itself.
        try:
            await self.nack(error)
        except PenstockError as trouble:
            error.add_note(f"and the message could not be nacked: {trouble}")

    def __repr__(self) -> str:
        return f"<LeasedMessage {self.id} of {self.queue!r}, attempt {self.attempts}>"


def check_leased(message: LeasedMessage) -> LeasedMessage:
    if not isinstance(message, LeasedMessage):
        raise WrongType(f"this takes a message that was leased, not {type(message).__name__}", field="messages")
    return message
