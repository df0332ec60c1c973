"""The queue API, `/queues`: named queues with leases, tokens, retries, dead letters, keys and signatures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.api_keys import new_key
from penstock.core.commands import Settled, SettleItem
from penstock.core.model import PushItem, QueueOptions, State, system_clock
from penstock.errors import InvalidName, UnknownMessage, UnknownQueue
from penstock.server.api.polling import poll, until_disconnect
from penstock.server.api.queues import mapping as translation
from penstock.server.api.queues.ndjson import QueueStreams
from penstock.server.api.queues.routes import queue_routes
from penstock.server.auth import Gate
from penstock.server.event_stream import EventBroadcaster
from penstock.server.http.messages import Request, Response, reply, reply_binary
from penstock.server.routing import Route
from penstock.server.signatures import SIGNATURE_HEADER, Signatures
from penstock.wire import queues as shapes
from penstock.wire.binary_batches import (
    BinaryPoll,
    BinaryPolled,
    BinaryPushed,
    decode_ack,
    decode_poll,
    decode_push,
)
from penstock.wire.http_errors import HttpError
from penstock.wire.new_messages import add_headers, new_message
from penstock.wire.queue_views import message_view, polled_message, pushed_many, queue_view, stats_view

create_queue = msgspec.json.Decoder(shapes.CreateQueue)
option_changes = msgspec.json.Decoder(shapes.OptionChanges)
push_body = msgspec.json.Decoder(shapes.PushBody)
poll_body = msgspec.json.Decoder(shapes.PollBody)
ack_body = msgspec.json.Decoder(shapes.AckBody)
nack_body = msgspec.json.Decoder(shapes.NackBody)
extend_body = msgspec.json.Decoder(shapes.ExtendBody)
transact_body = msgspec.json.Decoder(shapes.TransactBody)
requeue_body = msgspec.json.Decoder(shapes.RequeueBody)


class Queues:
    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        gate: Gate,
        signatures: Signatures,
        broadcaster: EventBroadcaster | None,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._gate = gate
        self._signatures = signatures
        self.streams = QueueStreams(broker, settings, signatures, broadcaster)

    def routes(self) -> list[Route]:
        return queue_routes(self)

    # Queues

    async def create(self, request: Request) -> Response:
        body = await request.json(create_queue)
        changes, secret = translation.option_changes(body)
        translation.check_dlq(request, body.name, changes.get("dlq"))
        try:
            configured = await self._broker.configure(body.name, changes, create=QueueOptions(), exact=True)
        except InvalidName as error:
            error.field = "name"
            raise
        if secret is not msgspec.UNSET:
            if configured.created:
                await self._signatures.set(body.name, secret)
            else:
                await self._signatures.require(body.name, secret)
        return reply(queue_view(configured.info), 201 if configured.created else 200)

    async def list_all(self, request: Request) -> Response:
        query = request.query(shapes.ListQuery)
        found = await self._broker.list_queues(prefix=query.prefix, after=query.after, limit=query.limit)
        more = found[-1].name if len(found) == query.limit else None
        return reply(shapes.QueueList([queue_view(info) for info in found], more), rows=len(found))

    async def show(self, request: Request) -> Response:
        name = request.params["queue"]
        info = await self._broker.find_queue(name)
        if info is None:
            raise UnknownQueue(name)
        return reply(queue_view(info))

    async def change(self, request: Request) -> Response:
        name = request.params["queue"]
        changes, secret = translation.option_changes(await request.json(option_changes))
        translation.check_dlq(request, name, changes.get("dlq"))
        configured = await self._broker.configure(name, changes)
        if secret is not msgspec.UNSET:
            await self._signatures.set(name, secret)
        return reply(queue_view(configured.info))

    async def drop(self, request: Request) -> Response:
        name = request.params["queue"]
        removed = await self._broker.drop(name, force=request.query(shapes.DropQuery).force)
        self._gate.forget_keys()
        self._signatures.forget(name)
        return reply(shapes.Dropped(name, removed), rows=removed)

    async def pause(self, request: Request) -> Response:
        return reply(queue_view(await self._broker.pause(request.params["queue"])))

    async def resume(self, request: Request) -> Response:
        return reply(queue_view(await self._broker.pause(request.params["queue"], paused=False)))

    async def compact(self, request: Request) -> Response:
        if not request.principal.is_admin:
            raise HttpError(
                403, "forbidden", "permission denied: compacting concerns the whole store", hint="use the admin token"
            )
        await self._require_queue(request)
        await self._broker.compact()
        return reply(shapes.Done())

    async def stats(self, request: Request) -> Response:
        return reply(stats_view(await self._broker.stats(request.params["queue"])))

    async def _require_queue(self, request: Request) -> str:
        name = request.params["queue"]
        if await self._broker.find_queue(name) is None:
            raise UnknownQueue(name)
        return name

    # Pushing

    async def push(self, request: Request) -> Response:
        queue = request.params["queue"]
        if request.content_type() == b"application/x-ndjson":
            return await self.streams.push(request, queue)
        if request.is_binary:
            push = await request.binary(decode_push)
            key = _request_key(request, push.request_key)
            add_headers(push.messages, await self._signatures.secret(queue), request.traceparent)
            return await self._push_batch(request, queue, push.messages, key)
        body = await request.json(push_body)
        if body.messages is not msgspec.UNSET:
            if body.payload is not msgspec.UNSET:
                raise HttpError(422, "invalid_value", "send payload or messages, not both", field="messages")
            key = _request_key(request, body.request_key)
            messages = await self._new_messages(request, queue, body.messages)
            return await self._push_batch(request, queue, messages, key)
        if body.payload is msgspec.UNSET:
            raise HttpError(422, "invalid_value", "missing payload or messages", field="payload")
        if body.request_key is not None:
            raise HttpError(
                422,
                "invalid_value",
                "request_key needs messages; a single message has an idempotency_key",
                field="request_key",
            )
        body.idempotency_key = _header_or_field(
            request.header(b"idempotency-key"), body.idempotency_key, "Idempotency-Key", "idempotency_key"
        )
        body.signature = _header_or_field(
            request.header(SIGNATURE_HEADER), body.signature, "X-Penstock-Signature", "signature"
        )
        [receipt] = await self._broker.push(queue, await self._new_messages(request, queue, [body]))
        answer = shapes.PushedOne(receipt.id, receipt.id, receipt.uuid, receipt.duplicate)
        return reply(answer, 200 if receipt.duplicate else 201, rows=1)

    async def _push_batch(
        self, request: Request, queue: str, messages: Sequence[PushItem], request_key: str | None
    ) -> Response:
        receipts = await self._broker.push(queue, messages, request_key=request_key)
        pushed = pushed_many(receipts)
        if request.wants_binary:
            return reply_binary(BinaryPushed(pushed.message_ids, pushed.duplicates), 201, rows=len(receipts))
        return reply(pushed, 201, rows=len(receipts))

    async def _new_messages(
        self, request: Request, queue: str, sent: Sequence[shapes.PushOne | shapes.PushBody]
    ) -> list[PushItem]:
        secret = await self._signatures.secret(queue)
        trace = request.traceparent
        return [new_message(each, secret, trace) for each in sent]

    # Consuming

    async def poll(self, request: Request) -> Response:
        query = request.query(shapes.PollQuery)
        queue = request.params["queue"]
        if request.is_binary:
            body: shapes.PollBody | BinaryPoll = await request.binary(decode_poll, BinaryPoll())
        else:
            body = await request.json(poll_body, shapes.PollBody())
        acking = await self._submit_acks(request, queue, body)
        try:
            messages = await poll(
                self._broker,
                self._settings,
                request,
                queue,
                limit=min(query.batch, self._settings.batch_max),
                lease_ms=query.visibility_ms,
                wait_ms=self._settings.wait_ms_default if query.wait_ms is None else query.wait_ms,
                worker=query.worker,
            )
        finally:
            acked = [*await acking] if acking is not None else None
        if request.wants_binary:
            return reply_binary(BinaryPolled(messages, acked), rows=len(messages))
        return reply(shapes.Polled([polled_message(message) for message in messages], acked), rows=len(messages))

    async def _submit_acks(
        self, request: Request, queue: str, body: shapes.PollBody | BinaryPoll
    ) -> asyncio.Future[list[Settled]] | None:
        """Submit acks before the lease, so that both share one commit."""
        if not body.acks:
            return None
        items = [SettleItem(each.id, each.token) for each in body.acks]
        translation.check_tokens(request, items)
        acking = asyncio.ensure_future(self._broker.ack(queue, items))
        await asyncio.sleep(0)
        return acking

    async def ack(self, request: Request) -> Response:
        if request.is_binary:
            body = shapes.AckBody(items=[*(await request.binary(decode_ack)).items])
        else:
            body = await request.json(ack_body)
        items = translation.settle_items(request, body)
        results = await self._broker.ack(request.params["queue"], items)
        return translation.settled(body, items, results, binary=request.wants_binary)

    async def nack(self, request: Request) -> Response:
        body = await request.json(nack_body)
        items = translation.settle_items(request, body)
        outcome = await self._broker.nack(request.params["queue"], items)
        return translation.settled(body, items, outcome.results, states=outcome.states)

    async def release(self, request: Request) -> Response:
        body = await request.json(ack_body)
        items = translation.settle_items(request, body)
        results = await self._broker.release(request.params["queue"], items)
        return translation.settled(body, items, results)

    async def extend(self, request: Request) -> Response:
        body = await request.json(extend_body)
        items = translation.settle_items(request, body)
        outcome = await self._broker.extend(request.params["queue"], items, lease_ms=body.ms)
        return translation.settled(body, items, outcome.results, leased_until=outcome.leased_until)

    async def transact(self, request: Request) -> Response:
        home = request.params["queue"]
        body = await request.json(transact_body)
        commands: list[Any] = []
        for verb, settles in ((self._broker.ack_command, body.ack), (self._broker.nack_command, body.nack)):
            for queue, group in translation.by_queue(request, home, settles):
                items = [translation.settle_item(each) for each in group]
                translation.check_tokens(request, items)
                commands.append(verb(queue, items))
        for queue, pushes in translation.by_queue(request, home, body.push):
            if not request.principal.may("push", queue):
                raise HttpError(403, "forbidden", f"permission denied: no right to push to queue {queue!r}")
            commands.append(self._broker.push_command(queue, await self._new_messages(request, queue, pushes)))
        if not any(command.queue == home for command in commands):
            await self._require_queue(request)
        outcomes = await self._broker.transact(commands)
        receipts = [receipt for outcome in outcomes for receipt in getattr(outcome, "receipts", ())]
        ids = [receipt.id for receipt in receipts]
        duplicates = [position for position, receipt in enumerate(receipts) if receipt.duplicate]
        return reply(shapes.TransactedView(len(body.ack), len(body.nack), ids, duplicates), rows=len(ids))

    # Reading and removing

    async def peek(self, request: Request) -> Response:
        query = request.query(shapes.PeekQuery)
        return await self._page(request.params["queue"], State(query.state), query)

    async def get(self, request: Request) -> Response:
        queue, message_id = translation.message_id(request)
        message = await self._broker.get(queue, message_id)
        if message is None:
            raise UnknownMessage(queue, message_id)
        return reply(message_view(message))

    async def remove(self, request: Request) -> Response:
        queue, message_id = translation.message_id(request)
        if not await self._broker.remove(queue, [message_id]):
            raise UnknownMessage(queue, message_id)
        return reply(shapes.Done(), rows=1)

    async def purge(self, request: Request) -> Response:
        return await self._purge(request, State.READY, State.SCHEDULED)

    async def _purge(self, request: Request, *states: State) -> Response:
        dry_run = request.query(shapes.PurgeQuery).dry_run
        queue = request.params["queue"]
        if dry_run:
            info = (await self._broker.stats(queue)).info
            # The name of a dead-letter queue selects the dead letters alone.
            counted = states if info.name == queue else (State.DEAD,)
            return reply(shapes.Purged(sum(getattr(info, state) for state in counted), True))
        removed = await self._broker.purge(queue, states)
        return reply(shapes.Purged(removed, False), rows=removed)

    async def _page(self, queue: str, state: State, query: shapes.PageQuery) -> Response:
        found, after = await self._broker.peek(queue, state=state, limit=query.limit, after=query.after)
        return reply(shapes.MessagePage([message_view(message) for message in found], after), rows=len(found))

    # Dead letters

    async def dead(self, request: Request) -> Response:
        return await self._page(request.params["queue"], State.DEAD, request.query(shapes.PageQuery))

    async def requeue(self, request: Request) -> Response:
        body = await request.json(requeue_body, shapes.RequeueBody())
        where = body.where
        times = [where.died_before, None if where.older_than_ms is None else system_clock() - where.older_than_ms]
        redriving = self._broker.redrive(
            request.params["queue"],
            ids=where.ids,
            error_contains=where.error_contains,
            groups=where.groups,
            died_before=min((time for time in times if time is not None), default=None),
            rate_per_s=body.rate_per_s,
            dry_run=body.dry_run,
            by=None if request.principal is None else request.principal.name,
        )
        # At a low rate it may take hours; it stops if the client disconnects.
        redriven = await until_disconnect(request, redriving)
        answer = shapes.Requeued(redriven.matched, redriven.moved, redriven.matched - redriven.moved)
        return reply(answer, rows=redriven.moved)

    async def purge_dead(self, request: Request) -> Response:
        return await self._purge(request, State.DEAD)

    # Keys

    async def add_key(self, request: Request) -> Response:
        body = await request.json(shapes.new_key_body, shapes.NewKey())
        key_id, secret, digest = new_key()
        queue = request.params["queue"]
        key = await self._broker.add_key(queue=queue, id=key_id, name=body.name, hash=digest, rights=body.rights)
        return reply(shapes.KeyView.of(key, secret), 201)

    async def list_keys(self, request: Request) -> Response:
        queue = await self._require_queue(request)
        keys = [shapes.KeyView.of(key) for key in await self._broker.list_keys(queue=queue)]
        return reply(shapes.KeyList(keys), rows=len(keys))

    async def remove_key(self, request: Request) -> Response:
        if not await self._broker.remove_keys(request.params["key"], queue=request.params["queue"]):
            raise HttpError(404, "unknown_key", "there is no such key on this queue")
        self._gate.forget_keys()
        return reply(shapes.Done())


def _request_key(request: Request, sent: str | None) -> str | None:
    """Return the key of a batch; raise if its signature is in the header, where that of a single message is."""
    if request.header(SIGNATURE_HEADER) is not None:
        raise HttpError(422, "invalid_value", "with messages, each message carries its own signature", field="messages")
    return _header_or_field(request.header(b"idempotency-key"), sent, "Idempotency-Key", "request_key")


def _header_or_field(header: bytes | None, value: str | None, header_name: str, field: str) -> str | None:
    """Return the value of the header or the body field; both may be set if they agree."""
    if header is None:
        return value
    text = header.decode("latin-1")
    if value is not None and value != text:
        raise HttpError(
            422, "invalid_value", f"the header {header_name} and the field {field} differ", field=field, hint="send one"
        )
    return text
