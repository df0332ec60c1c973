# Made by tools/unasync.py from the asynchronous twin: change that.
"""A leased message."""

from __future__ import annotations

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
    from penstock.client._sync.client import Client

_UNREAD = object()


class LeasedMessage:
    """A message leased to you until `leased_until` (milliseconds since 1970).

    As a context manager it acks the message on a clean exit, and nacks it with the text of an exception, which
    propagates::

        with message:
            send(message.payload)
    """

    __slots__ = ("__weakref__", "_client", "_lease", "_payload", "lost", "settled")

    def __init__(self, client: Client, lease: Lease) -> None:
        self._client = client
        self._lease = lease
        self._payload: Any = _UNREAD
        self.settled = False
        """True if the message was acked, nacked or released."""
        self.lost = False
        """True if the lease is known to be over: another consumer may have the message."""

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
        """The pushed value."""
        if self._payload is _UNREAD:
            self._payload = payloads.decode(self._lease.payload, self._lease.content)
        return self._payload

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self._lease.payload)

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
        """End of the lease as first granted; extensions do not change it."""
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
        """Return the id and the lease token, for settling the message."""
        return SettleItem(self._lease.id, self._lease.token)

    def failed_item(
        self, error: str | BaseException | None, delay: Seconds | None, dead: bool = False, discard: bool = False
    ) -> SettleItem:
        """Return the item for a nack, with the error and what to do with the message."""
        item = self.item()
        item.delay_ms = None if delay is None else milliseconds("delay", delay)
        item.error = describe(error)
        item.traceback = format_traceback(error)
        check_flag("dead", dead)
        check_flag("discard", discard)
        item.dead = dead or isinstance(error, DeadLetter)
        item.discard = discard or isinstance(error, Discard)
        return item

    def ack(self) -> None:
        """Acknowledge the message. Raises LeaseLost if the lease is over."""
        self._end(self._settle("ack", self.item()))

    def nack(
        self,
        error: str | BaseException | None = None,
        *,
        delay: Seconds | None = None,
        dead: bool = False,
        discard: bool = False,
    ) -> None:
        """Report failure: retry after `delay` seconds (default: the queue's backoff), or dead-letter the message.

        With `dead`, the message is dead-lettered now, even if attempts are left; with `discard`, it is deleted. The
        text and traceback of an exception are stored with the message.
        """
        self._end(self._settle("nack", self.failed_item(error, delay, dead, discard)))

    def release(self) -> None:
        """Return the message to the queue: it keeps its position, and the delivery does not count as an attempt."""
        self._end(self._settle("release", self.item()))

    def extend(self, lease: Seconds | None = None) -> None:
        """Extend the lease to `lease` seconds from now (default: the queue's lease time)."""
        lease_ms = None if lease is None else milliseconds("lease", lease, 1, LEASE_MS_MAX)
        results = self._client.transport.settle("extend", self.queue, [self.item()], lease_ms=lease_ms)
        self._check(results[0])

    def _settle(self, verb: str, item: SettleItem) -> Settled:
        return self._client.transport.settle_one(verb, self._lease.queue, item)

    def _end(self, result: Settled) -> None:
        """Mark the message as settled; raise LeaseLost if the server refused."""
        self._client.lease_renewer.end(self)
        self._check(result)

    def _check(self, result: Settled) -> None:
        if result is not Settled.OK:
            self.lost = True
            raise LeaseLost(self.id)

    def __enter__(self) -> LeasedMessage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.ack()
            return
        # The block's own error matters more than a failed nack: the lease expires by itself.
        try:
            self.nack(error)
        except PenstockError as trouble:
            error.add_note(f"the message could not be nacked: {trouble}")

    def __repr__(self) -> str:
        return f"<LeasedMessage {self.id} of {self.queue!r}, attempt {self.attempts}>"


def check_leased(message: LeasedMessage) -> LeasedMessage:
    if not isinstance(message, LeasedMessage):
        raise WrongType(f"expected a leased message, got {type(message).__name__}", field="messages")
    return message
