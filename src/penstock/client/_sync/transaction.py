# Made by tools/unasync.py from the asynchronous twin: change that.
"""Ack, nack and push, all or nothing."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.client._sync.message import LeasedMessage, check_leased
from penstock.client.types import NewMessage, Receipt, Seconds
from penstock.core.commands import SettleItem
from penstock.core.model import PushItem as StoredNewMessage

if TYPE_CHECKING:
    from penstock.client._sync.client import Client


class Transaction:
    """Collects acks, nacks and pushes, and applies them together at the end of the block; none after an exception::

        with queue.transact() as tx:
            tx.ack(message)
            tx.push({"step": 2}, queue="next")
        print(tx.receipts)

    Raises LeaseLost or UnknownMessage if a lease is over, and UnknownQueue if this queue or one that is pushed to does
    not exist; nothing is applied then.
    """

    def __init__(self, client: Client, home: str) -> None:
        self._client = client
        self._home = home
        self.receipts: list[Receipt] = []
        """Receipts of the pushes, in order, after the end of the block."""
        self._begin()

    def _begin(self) -> None:
        self._acks: dict[str, list[SettleItem]] = {}
        self._nacks: dict[str, list[SettleItem]] = {}
        self._pushes: dict[str, list[StoredNewMessage]] = {}
        self._places: list[tuple[str, int]] = []
        self._settled: list[LeasedMessage] = []

    def ack(self, message: LeasedMessage) -> None:
        self._acks.setdefault(message.queue, []).append(check_leased(message).item())
        self._settled.append(message)

    def nack(
        self,
        message: LeasedMessage,
        error: str | BaseException | None = None,
        *,
        delay: Seconds | None = None,
        dead: bool = False,
        discard: bool = False,
    ) -> None:
        item = check_leased(message).failed_item(error, delay, dead, discard)
        self._nacks.setdefault(message.queue, []).append(item)
        self._settled.append(message)

    def push(
        self,
        payload: Any,
        *,
        queue: str | None = None,
        priority: int = 0,
        delay: Seconds | None = None,
        ttl: Seconds | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Push to this queue or another one."""
        new = NewMessage(payload=payload, priority=priority, delay=delay, ttl=ttl, key=key, headers=headers)
        message = new.to_store()
        group = self._pushes.setdefault(queue or self._home, [])
        self._places.append((queue or self._home, len(group)))
        group.append(message)

    def commit(self) -> list[Receipt]:
        """Apply the transaction. The end of the block does this."""
        if self._settled or self._places:
            flat = self._client.transport.transact(self._home, self._acks, self._nacks, self._pushes)
            firsts: dict[str, int] = {}
            position = 0
            for queue, group in self._pushes.items():
                firsts[queue] = position
                position += len(group)
            self.receipts += [flat[firsts[queue] + number] for queue, number in self._places]
            for message in self._settled:
                self._client.lease_renewer.end(message)
            self._begin()  # So that the end of the block does not apply it again.
        return self.receipts

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
