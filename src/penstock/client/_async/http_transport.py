"""The client's operations over HTTP. Concurrent calls are batched; pushes have keys so that they can be retried."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.client import batches, queue_json
from penstock.client._async.batcher import RequestBatcher
from penstock.client._async.http_session import MAYBE, Session
from penstock.client._async.poller import Poller
from penstock.client.stop import StopSignal
from penstock.client.transport_errors import Interrupt
from penstock.client.types import AUTO_KEY, Page, Receipt, Redriven
from penstock.core import fork_safety
from penstock.core.commands import Settled, SettleItem
from penstock.core.ids import check_new_queue_name, check_queue_name
from penstock.core.model import Delivery, PushItem, QueueInfo, State, StoredMessage
from penstock.errors import (
    InvalidInput,
    LeaseLost,
    PenstockError,
    QueueFull,
    RateLimited,
    UnknownMessage,
    Unsupported,
)
from penstock.wire.queues import Stats

if TYPE_CHECKING:
    from penstock.client._async.http_streams import HttpStreams

T = TypeVar("T")
JOINED_BYTES_MAX = 4 << 20
JOINED_ITEMS_MAX = 1_000
POLLERS_MAX = 1_000
# Longest duration of a rate-limited redrive.
SLOW_SECONDS_MAX = 86_400.0
Messages = Sequence[PushItem]


class HttpTransport:
    """Executes the client's operations over HTTP.

    Methods called for every message return an awaitable instead of being coroutines, which saves a frame per call.
    """

    kind: Literal["server"] = "server"

    def __init__(self, session: Session, linger: float) -> None:
        self.session = session
        self._linger = linger
        self.after_fork_in_child()
        fork_safety.register_reset(self)

    @cached_property
    def streams(self) -> HttpStreams:
        from penstock.client._async.http_streams import HttpStreams

        return HttpStreams(self.session, self._linger)

    # After a fork the child must not send what the parent's threads were about to send.

    def after_fork_in_child(self) -> None:
        self._pushes: dict[str, RequestBatcher[Messages, list[Receipt]]] = {}
        self._settles: dict[tuple[str, str], RequestBatcher[SettleItem, Settled]] = {}
        self._pollers: dict[tuple[str, int | None, str | None], Poller] = {}

    # Pushing

    def push(self, queue: str, messages: Messages) -> Awaitable[list[Receipt]]:
        batcher = self._pushes.get(queue)
        if batcher is None:
            path = f"{_path(check_new_queue_name(queue))}/messages"
            batcher = self._pushes[queue] = RequestBatcher(
                lambda batch, attempt: self._push_all(queue, path, batch, AUTO_KEY + attempt.key),
                weigh=_weight,
                weight_max=JOINED_BYTES_MAX,
                linger=self._linger,
            )
        return batcher.join(messages)

    def push_on(self, conn: Any, queue: str, messages: Messages) -> Awaitable[list[Receipt]]:
        raise Unsupported(
            "conn: a push over HTTP cannot be part of your transaction",
            hint="connect to the sqlite:///… file or postgresql://… database of the queue, or push after the commit",
        )

    async def _push_all(
        self, queue: str, path: str, batch: list[Messages], key: str
    ) -> list[list[Receipt] | Exception]:
        """Send all in one request; if the server refuses it because of one part, send each part on its own."""
        alone = len(batch) == 1
        body = batches.push_body(batch, key)
        try:
            pushed, _ = await self.session.get_batch(batches.pushed, "POST", path, body, queue=queue, share=not alone)
        except (InvalidInput, QueueFull, RateLimited) as error:
            if alone or error.maybe_done:  # Sent again in parts, with other keys, a message could be added twice.
                return [error] * len(batch)
            half = len(batch) // 2
            first = await self._push_all(queue, path, batch[:half], f"{key}l")
            return first + await self._push_all(queue, path, batch[half:], f"{key}r")
        except PenstockError as error:
            return [error] * len(batch)
        again = frozenset(pushed.duplicates)
        outcomes: list[list[Receipt] | Exception] = []
        position = 0
        for messages in batch:
            receipts = []
            for message in messages:
                # Without a key from the user, the duplicate is the SDK's own retry: do not report it.
                duplicate = position in again and message.key is not None
                receipts.append(Receipt(pushed.message_ids[position], duplicate))
                position += 1
            outcomes.append(receipts)
        return outcomes

    # Consuming

    def lease(
        self,
        queue: str,
        limit: int,
        lease_ms: int | None,
        wait_seconds: float,
        stop: StopSignal | None,
        worker: str | None = None,
    ) -> Awaitable[list[Delivery]]:
        poller = self._pollers.get((queue, lease_ms, worker))
        if poller is None:
            if len(self._pollers) >= POLLERS_MAX:
                self._pollers = {key: each for key, each in self._pollers.items() if not each.idle}
            poller = self._pollers[queue, lease_ms, worker] = self._new_poller(queue, lease_ms, worker)
        return poller.lease(limit, wait_seconds, stop) if wait_seconds > 0 else poller.check(limit)

    def _new_poller(self, queue: str, lease_ms: int | None, worker: str | None) -> Poller:
        path = f"{_path(queue)}/poll?" + ("" if lease_ms is None else f"visibility_ms={lease_ms}&")
        path += "" if worker is None else f"worker={quote(worker, safe='')}&"
        decoder = batches.polled(queue)

        async def poll(limit: int, wait_seconds: float, interrupt: Interrupt | None) -> list[Delivery]:
            target = f"{path}batch={limit}&wait_ms={round(wait_seconds * 1000)}"
            found, _ = await self.session.get_batch(
                decoder,
                "POST",
                target,
                queue=queue,
                wait_seconds=wait_seconds,
                interrupt=interrupt,
                patient=worker is not None,
            )
            return found

        async def release(messages: list[Delivery]) -> None:
            items = [SettleItem(message.id, message.token) for message in messages]
            await self.settle("release", queue, items, retry_for=1.0)

        return Poller(poll, release)

    async def settle(
        self,
        verb: str,
        queue: str,
        items: Sequence[SettleItem],
        *,
        lease_ms: int | None = None,
        retry_for: float | None = None,
        surely: bool = False,
    ) -> list[Settled]:
        """Ack, nack, extend or release items, and return a result for each.

        The server remembers what a token did, so a retry gets the results of the first attempt. With `surely`, an
        unknown outcome is an error.
        """
        results, repeated = await self._settle(verb, queue, items, lease_ms, retry_for)
        if surely and repeated:
            for result in _sure_results(verb, items, results):
                if isinstance(result, LeaseLost):
                    raise result
        return results

    async def _settle(
        self,
        verb: str,
        queue: str,
        items: Sequence[SettleItem],
        lease_ms: int | None = None,
        retry_for: float | None = None,
    ) -> tuple[list[Settled], bool]:
        """Return the results, and whether an earlier attempt may have succeeded as well."""
        if not items:
            return [], False
        path = f"{_path(queue)}/{verb}"
        try:
            return await self.session.get_batch(
                batches.settled,
                "POST",
                path,
                batches.settle_body(verb, items, lease_ms),
                queue=queue,
                retry_for=retry_for,
                patient=True,
            )
        except LeaseLost:
            return [Settled.STALE], False
        except UnknownMessage:
            return [Settled.UNKNOWN], False

    def settle_one(self, verb: str, queue: str, item: SettleItem) -> Awaitable[Settled]:
        """Settle one item, batched with concurrent calls."""
        batcher = self._settles.get((verb, queue))
        if batcher is None:
            batcher = self._settles[verb, queue] = RequestBatcher(
                lambda batch, _: self._settle_batch(verb, queue, batch),
                weigh=lambda _: 1,
                weight_max=JOINED_ITEMS_MAX,
                lanes=2,
                linger=self._linger,
            )
        return batcher.join(item)

    async def _settle_batch(self, verb: str, queue: str, items: list[SettleItem]) -> list[Settled | Exception]:
        results, repeated = await self._settle(verb, queue, items)
        return _sure_results(verb, items, results) if repeated else list(results)

    async def transact(
        self,
        home: str,
        acks: dict[str, list[SettleItem]],
        nacks: dict[str, list[SettleItem]],
        pushes: dict[str, list[PushItem]],
    ) -> list[Receipt]:
        body = {
            "ack": [queue_json.settle_one(item, queue) for queue, items in acks.items() for item in items],
            "nack": [queue_json.settle_one(item, queue) for queue, items in nacks.items() for item in items],
            "push": [queue_json.push_one(m, queue) for queue, some in pushes.items() for m in add_keys(some)],
        }
        # Not repeatable: a second attempt would find the leases settled by the first.
        done = await self.session.get(
            queue_json.transacted,
            "POST",
            f"{_path(home)}/transact",
            body,
            queue=home,
            repeatable=not acks and not nacks,
        )
        again = frozenset(done.duplicates)
        keyed = [message.key is not None for some in pushes.values() for message in some]
        return [Receipt(id_, keyed[at] and at in again) for at, id_ in enumerate(done.message_ids)]

    # Reading

    async def peek(self, queue: str, state: State, limit: int, after: str | None) -> Page[StoredMessage]:
        query = _query(state=state.value, limit=limit, after=after)
        page = await self.session.get(queue_json.message_page, "GET", f"{_path(queue)}/peek{query}", queue=queue)
        return Page([queue_json.stored_message(message) for message in page.messages], page.next)

    async def get(self, queue: str, message_id: int) -> StoredMessage | None:
        path = f"{_path(queue)}/messages/{message_id}"
        try:
            found = await self.session.get(queue_json.message_view, "GET", path, queue=queue)
        except UnknownMessage:
            return None
        return queue_json.stored_message(found)

    async def remove(self, queue: str, message_id: int) -> bool:
        path = f"{_path(queue)}/messages/{message_id}"
        try:
            await self.session.request("DELETE", path, queue=queue)
        except UnknownMessage:
            return False
        return True

    async def info(self, queue: str, *, patient: bool = False) -> QueueInfo:
        found = await self.session.get(queue_json.queue_view, "GET", _path(queue), queue=queue, patient=patient)
        return queue_json.queue_info(found)

    async def stats(self, queue: str) -> Stats:
        return await self.session.get(queue_json.stats, "GET", f"{_path(queue)}/stats", queue=queue)

    async def queues(self, prefix: str, limit: int, after: str | None) -> Page[QueueInfo]:
        found = await self.session.get(
            queue_json.queue_list, "GET", "/queues" + _query(prefix=prefix, limit=limit, after=after)
        )
        return Page([queue_json.queue_info(queue) for queue in found.queues], found.next)

    # Managing

    async def create(self, queue: str, options: dict[str, Any]) -> None:
        body = {"name": check_new_queue_name(queue), **queue_json.sendable(options)}
        await self.session.get(queue_json.queue_view, "POST", "/queues", body, queue=queue)

    async def configure(self, queue: str, changes: dict[str, Any]) -> QueueInfo:
        path = _path(check_new_queue_name(queue))
        body = queue_json.sendable(changes)
        return queue_json.queue_info(await self.session.get(queue_json.queue_view, "PATCH", path, body, queue=queue))

    async def drop(self, queue: str, force: bool) -> int:
        path = f"{_path(queue)}?force={str(force).lower()}"
        return (await self.session.get(queue_json.dropped, "DELETE", path, queue=queue, repeatable=False)).messages

    async def pause(self, queue: str, paused: bool) -> None:
        verb = "pause" if paused else "resume"
        await self.session.get(queue_json.queue_view, "POST", f"{_path(queue)}/{verb}", queue=queue)

    async def purge(self, queue: str, dead: bool) -> int:
        verb = "dlq/purge" if dead else "purge"
        return (await self.session.get(queue_json.purged, "POST", f"{_path(queue)}/{verb}", queue=queue)).purged

    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[int] | None,
        error_contains: str | None,
        older_than_ms: int | None,
        rate_per_s: float | None,
        dry_run: bool,
    ) -> Redriven:
        queue_json.sendable({"rate_per_s": rate_per_s})
        where = {"ids": ids, "error_contains": error_contains, "older_than_ms": older_than_ms}
        body = {"where": where, "rate_per_s": rate_per_s, "dry_run": dry_run}
        path = f"{_path(queue)}/dlq/requeue"
        wait = 0.0 if rate_per_s is None else SLOW_SECONDS_MAX
        done = await self.session.get(queue_json.requeued, "POST", path, body, queue=queue, wait_seconds=wait)
        return Redriven(done.matched, done.moved)

    async def close(self) -> None:
        await self.session.close()


def add_keys(messages: Messages) -> Messages:
    """Add a key to each message without one, so that a retry adds nothing."""
    if all(message.key is not None for message in messages):
        return messages
    base = AUTO_KEY + os.urandom(12).hex()
    return [
        message if message.key is not None else msgspec.structs.replace(message, key=f"{base}.{number}")
        for number, message in enumerate(messages)
    ]


def _sure_results(verb: str, items: Sequence[SettleItem], results: Sequence[Settled]) -> list[Settled | Exception]:
    """Replace the results of a retry by an error where the outcome of the first attempt is unknown.

    A message that still exists was not acked. Otherwise the server may have forgotten what the token did, if that was
    minutes ago or its clock changed.
    """
    known = (Settled.OK, Settled.STALE) if verb == "ack" else (Settled.OK,)
    return [result if result in known else _unknown_outcome(item) for item, result in zip(items, results, strict=True)]


def _unknown_outcome(item: SettleItem) -> LeaseLost:
    """Return the error for a lease that is over, maybe because of an earlier attempt."""
    error = LeaseLost(item.id)
    error.maybe_done, error.hint = True, MAYBE
    return error


def _weight(messages: Messages) -> int:
    return sum(len(message.payload) + 256 for message in messages)


def _path(queue: str) -> str:
    return "/queues/" + quote(check_queue_name(queue), safe="")


def _query(**values: Any) -> str:
    return "?" + urlencode({name: value for name, value in values.items() if value is not None})
