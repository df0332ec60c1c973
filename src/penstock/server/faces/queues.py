"""The queue face, `/queues`: named queues with leases, tokens, retries, dead letters, keys and signatures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from penstock.broker import Broker
from penstock.commands import SettleItem
from penstock.config import Settings
from penstock.errors import UnknownMessage, UnknownQueue
from penstock.model import Content, LeasedMessage, Message, NewMessage, QueueOptions, State, system_clock
from penstock.server.auth import Gate, check_signature, new_key
from penstock.server.faces import payloads
from penstock.server.faces.ndjson import lines
from penstock.server.faces.polling import poll
from penstock.server.faces.queue_routes import queue_routes
from penstock.server.faces.queue_shapes import (
    AckBody,
    CreateQueue,
    Done,
    Dropped,
    DropQuery,
    ExtendBody,
    Imported,
    ImportedMessage,
    KeyList,
    KeyView,
    ListQuery,
    MessagePage,
    NackBody,
    NewKey,
    OptionChanges,
    PageQuery,
    PeekQuery,
    PollBody,
    Polled,
    PolledMessage,
    PollQuery,
    Purged,
    PurgeQuery,
    PushBody,
    PushedMany,
    PushedOne,
    PushOne,
    QueueList,
    RequeueBody,
    Requeued,
    SettledItems,
    SettledOne,
    TransactBody,
    TransactedView,
    message_view,
    queue_view,
    stats_view,
)
from penstock.server.http import HttpError, Request, Response, decode, reply
from penstock.server.routing import Route
from penstock.server.telemetry import Metrics

SIGNATURE_HEADER = "penstock-signature"
SECRET_CACHE_SECONDS = 2.0
IMPORT_BATCH = 500
SSE_KEEPALIVE_SECONDS = 15.0

create_queue = msgspec.json.Decoder(CreateQueue)
option_changes = msgspec.json.Decoder(OptionChanges)
push_body = msgspec.json.Decoder(PushBody)
push_one = msgspec.json.Decoder(PushOne)
poll_body = msgspec.json.Decoder(PollBody)
ack_body = msgspec.json.Decoder(AckBody)
nack_body = msgspec.json.Decoder(NackBody)
extend_body = msgspec.json.Decoder(ExtendBody)
transact_body = msgspec.json.Decoder(TransactBody)
requeue_body = msgspec.json.Decoder(RequeueBody)
new_key_body = msgspec.json.Decoder(NewKey)
imported_message = msgspec.json.Decoder(ImportedMessage)


class Queues:
    def __init__(self, broker: Broker, settings: Settings, gate: Gate, metrics: Metrics) -> None:
        self._broker = broker
        self._settings = settings
        self._gate = gate
        self._metrics = metrics
        self._secrets: dict[str, tuple[float, str | None]] = {}

    def routes(self) -> list[Route]:
        return queue_routes(self)

    # Queues

    async def create(self, request: Request) -> Response:
        body = await request.json(create_queue)
        changes, secret = _changes(body, body.name)
        configured = await self._broker.configure(body.name, changes, create=QueueOptions(), exact=True)
        await self._set_secret(body.name, secret)
        return reply(queue_view(configured.info), 201 if configured.created else 200)

    async def list_all(self, request: Request) -> Response:
        query = request.query(ListQuery)
        found = await self._broker.list_queues(prefix=query.prefix, after=query.after, limit=query.limit)
        more = found[-1].name if len(found) == query.limit else None
        return reply(QueueList([queue_view(info) for info in found], more), rows=len(found))

    async def show(self, request: Request) -> Response:
        name = request.params["queue"]
        info = await self._broker.find_queue(name)
        if info is None:
            raise UnknownQueue(name)
        return reply(queue_view(info))

    async def change(self, request: Request) -> Response:
        name = request.params["queue"]
        changes, secret = _changes(await request.json(option_changes), name)
        configured = await self._broker.configure(name, changes)
        await self._set_secret(name, secret)
        return reply(queue_view(configured.info))

    async def drop(self, request: Request) -> Response:
        name = request.params["queue"]
        removed = await self._broker.drop(name, force=request.query(DropQuery).force)
        self._gate.forget_keys()
        return reply(Dropped(name, removed))

    async def pause(self, request: Request) -> Response:
        return reply(queue_view(await self._broker.pause(request.params["queue"])))

    async def resume(self, request: Request) -> Response:
        return reply(queue_view(await self._broker.pause(request.params["queue"], paused=False)))

    async def compact(self, request: Request) -> Response:
        await self._require_queue(request)
        await self._broker.compact()
        return reply(Done())

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
            return await self._push_lines(request, queue)
        body = await request.json(push_body)
        if body.messages is not msgspec.UNSET:
            if body.payload is not msgspec.UNSET:
                raise HttpError(422, "invalid_value", "send payload or messages, not both", field="messages")
            receipts = await self._broker.push(queue, await self._new_messages(request, queue, body.messages))
            return reply(_pushed_many(receipts), 201, rows=len(receipts))
        if body.payload is msgspec.UNSET:
            raise HttpError(422, "invalid_value", "a payload, or messages, is missing", field="payload")
        header_key = request.header(b"idempotency-key")
        if header_key is not None and body.idempotency_key is None:
            body.idempotency_key = header_key.decode("latin-1")
        signature = request.header(b"x-penstock-signature")
        if signature is not None and body.signature is None:
            body.signature = signature.decode("latin-1")
        [receipt] = await self._broker.push(queue, await self._new_messages(request, queue, [body]))
        answer = PushedOne(receipt.id, receipt.id, receipt.uuid, receipt.duplicate)
        return reply(answer, 200 if receipt.duplicate else 201, rows=1)

    async def _push_lines(self, request: Request, queue: str) -> Response:
        """NDJSON, streamed: committed batch by batch, limited a record at a time."""
        pushed = PushedMany([], [])
        batch: list[PushOne] = []

        async def flush() -> None:
            receipts = await self._broker.push(queue, await self._new_messages(request, queue, batch))
            first = len(pushed.message_ids)
            more = _pushed_many(receipts)
            pushed.message_ids += more.message_ids
            pushed.duplicates += [first + position for position in more.duplicates]
            batch.clear()

        async for line in lines(request, self._settings.payload_bytes * 2 + 4096):
            batch.append(decode(line, push_one))
            if len(batch) >= IMPORT_BATCH:
                await flush()
        if batch or not pushed.message_ids:
            await flush()
        return reply(pushed, 201, rows=len(pushed.message_ids))

    async def _new_messages(self, request: Request, queue: str, sent: Sequence[PushOne | PushBody]) -> list[NewMessage]:
        secret = await self._secret(queue)
        trace = request.header(b"traceparent")
        return [_new_message(each, secret, trace) for each in sent]

    async def _secret(self, queue: str) -> str | None:
        now = time.monotonic()
        found = self._secrets.get(queue)
        if found is None or found[0] < now:
            if len(self._secrets) > 10_000:
                self._secrets.clear()
            found = self._secrets[queue] = (now + SECRET_CACHE_SECONDS, await self._broker.find_secret(queue))
        return found[1]

    async def _set_secret(self, queue: str, secret: Any) -> None:
        if secret is not msgspec.UNSET:
            await self._broker.set_secret(queue, secret)
            self._secrets.pop(queue, None)

    # Consuming

    async def poll(self, request: Request) -> Response:
        query = request.query(PollQuery)
        queue = request.params["queue"]
        wait_ms = self._settings.wait_ms_default if query.wait_ms is None else query.wait_ms
        if wait_ms and self._broker.polls >= self._settings.polls_max:
            raise HttpError(429, "too_many_polls", "too many polls wait already", headers={"retry-after": "1"})
        body = await request.body()
        acking: asyncio.Future[list[Any]] | None = None
        if body:
            items = [SettleItem(each.id, each.token) for each in decode(body, poll_body).acks]
            self._check_tokens(request, items)
            # Submitted before the lease, so that both share one commit.
            acking = asyncio.ensure_future(self._broker.ack(queue, items)) if items else None
            await asyncio.sleep(0)
        try:
            messages = await poll(
                self._broker,
                request,
                queue,
                limit=min(query.batch, self._settings.batch_max),
                lease_ms=query.visibility_ms,
                wait_ms=min(wait_ms, self._settings.wait_ms_max),
                worker=query.worker,
            )
        finally:
            acked = await acking if acking is not None else None
        return reply(Polled([_polled(message) for message in messages], acked), rows=len(messages))

    async def ack(self, request: Request) -> Response:
        items = self._items(request, await request.json(ack_body))
        results = await self._broker.ack(request.params["queue"], items)
        return _settled(items, results)

    async def nack(self, request: Request) -> Response:
        items = self._items(request, await request.json(nack_body))
        outcome = await self._broker.nack(request.params["queue"], items)
        return _settled(items, outcome.results, states=outcome.states)

    async def extend(self, request: Request) -> Response:
        body = await request.json(extend_body)
        items = self._items(request, body)
        outcome = await self._broker.extend(request.params["queue"], items, lease_ms=body.ms)
        return _settled(items, outcome.results, leased_until=outcome.leased_until)

    def _items(self, request: Request, body: Any) -> list[SettleItem]:
        if body.items is msgspec.UNSET:
            if body.id is msgspec.UNSET:
                raise HttpError(422, "invalid_value", "an id, or items, is missing", field="id")
            sent = [body]
        elif body.id is not msgspec.UNSET:
            raise HttpError(422, "invalid_value", "send id or items, not both", field="items")
        else:
            sent = body.items
        items = [
            SettleItem(each.id, each.token, getattr(each, "delay_ms", None), getattr(each, "error", None))
            for each in sent
        ]
        self._check_tokens(request, items)
        return items

    def _check_tokens(self, request: Request, items: Sequence[SettleItem]) -> None:
        """Settling without a token means settling another's lease: that takes the admin right."""
        if any(item.token is None for item in items) and not request.principal.may("admin", request.params["queue"]):
            raise HttpError(403, "forbidden", "a token is missing", field="token", hint="only an admin may do without")

    async def transact(self, request: Request) -> Response:
        home = request.params["queue"]
        body = await request.json(transact_body)
        commands: list[Any] = []
        for verb, settles in ((self._broker.ack_command, body.ack), (self._broker.nack_command, body.nack)):
            for queue, group in _by_queue(request, home, settles):
                items = [SettleItem(each.id, each.token, each.delay_ms, each.error) for each in group]
                self._check_tokens(request, items)
                commands.append(verb(queue, items))
        for queue, pushes in _by_queue(request, home, body.push):
            if not request.principal.may("push", queue):
                raise HttpError(403, "forbidden", f"no right to push to {queue!r}")
            commands.append(self._broker.push_command(queue, await self._new_messages(request, queue, pushes)))
        outcomes = await self._broker.transact(commands)
        ids = [receipt.id for outcome in outcomes for receipt in getattr(outcome, "receipts", ())]
        return reply(TransactedView(len(body.ack), len(body.nack), ids))

    # Looking and removing

    async def peek(self, request: Request) -> Response:
        query = request.query(PeekQuery)
        return await self._page(request.params["queue"], State(query.state), query)

    async def get(self, request: Request) -> Response:
        queue, message_id = _message_id(request)
        message = await self._broker.get(queue, message_id)
        if message is None:
            raise UnknownMessage(queue, message_id)
        return reply(message_view(message))

    async def remove(self, request: Request) -> Response:
        queue, message_id = _message_id(request)
        if not await self._broker.remove(queue, [message_id]):
            raise UnknownMessage(queue, message_id)
        return reply(Done())

    async def purge(self, request: Request) -> Response:
        return await self._purge(request, State.READY, State.SCHEDULED)

    async def _purge(self, request: Request, *states: State) -> Response:
        dry_run = request.query(PurgeQuery).dry_run
        queue = request.params["queue"]
        if dry_run:
            info = (await self._broker.stats(queue)).info
            return reply(Purged(sum(getattr(info, state) for state in states), True))
        removed = await self._broker.purge(queue, states)
        return reply(Purged(removed, False), rows=removed)

    async def _page(self, queue: str, state: State, query: PageQuery) -> Response:
        found, after = await self._broker.peek(queue, state=state, limit=query.limit, after=query.after)
        return reply(MessagePage([message_view(message) for message in found], after), rows=len(found))

    # Dead letters

    async def dead(self, request: Request) -> Response:
        return await self._page(request.params["queue"], State.DEAD, request.query(PageQuery))

    async def requeue(self, request: Request) -> Response:
        raw = await request.body()
        body = decode(raw, requeue_body) if raw else RequeueBody()
        where = body.where
        redriven = await self._broker.redrive(
            request.params["queue"],
            ids=where.ids,
            error_contains=where.error_contains,
            died_before=None if where.older_than_ms is None else system_clock() - where.older_than_ms,
            rate_per_s=body.rate_per_s,
            dry_run=body.dry_run,
        )
        answer = Requeued(redriven.matched, redriven.moved, redriven.matched - redriven.moved)
        return reply(answer, rows=redriven.moved)

    async def purge_dead(self, request: Request) -> Response:
        return await self._purge(request, State.DEAD)

    # Events, export, import

    async def events(self, request: Request) -> Response:
        queue = await self._require_queue(request)
        return Response(200, content_type=b"text/event-stream", stream=self._event_lines(request, queue))

    async def _event_lines(self, request: Request, queue: str) -> AsyncIterator[bytes]:
        leaving = asyncio.ensure_future(request.wait_for_disconnect())
        try:
            with self._broker.events.subscribe(queue) as subscription:
                yield b": events of this queue follow\n\n"
                while not leaving.done() and not self._broker.closing:
                    for kind, data in await subscription.next(SSE_KEEPALIVE_SECONDS):
                        yield b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))
                    else:
                        yield b": still here\n\n"
        finally:
            leaving.cancel()

    async def export(self, request: Request) -> Response:
        queue = await self._require_queue(request)
        return Response(200, content_type=b"application/x-ndjson", stream=self._export_lines(queue))

    async def _export_lines(self, queue: str) -> AsyncIterator[bytes]:
        messages = self._broker.export(queue)
        while chunk := await self._broker.read(lambda: _next_lines(messages)):
            yield chunk

    async def import_(self, request: Request) -> Response:
        queue = await self._require_queue(request)
        done = Imported(0, 0, 0)
        batch: list[NewMessage] = []

        async def flush() -> None:
            receipts = await self._broker.push(queue, batch)
            again = sum(receipt.duplicate for receipt in receipts)
            done.imported += len(receipts) - again
            done.duplicates += again
            batch.clear()

        async for line in lines(request, self._settings.payload_bytes * 2 + 65_536):
            message = decode(line, imported_message)
            if message.state == "archived":
                done.skipped += 1
                continue
            batch.append(_imported(message))
            if len(batch) >= IMPORT_BATCH:
                await flush()
        if batch:
            await flush()
        return reply(done, rows=done.imported)

    # Keys

    async def add_key(self, request: Request) -> Response:
        raw = await request.body()
        body = decode(raw, new_key_body) if raw else NewKey()
        key_id, secret, digest = new_key()
        queue = request.params["queue"]
        key = await self._broker.add_key(queue, id=key_id, name=body.name, hash=digest, rights=body.rights)
        view = KeyView(id=key.id, queue=queue, name=key.name, rights=key.rights, created_at=key.created_at, key=secret)
        return reply(view, 201)

    async def list_keys(self, request: Request) -> Response:
        queue = await self._require_queue(request)
        keys = [
            KeyView(id=key.id, queue=key.queue, name=key.name, rights=key.rights, created_at=key.created_at)
            for key in await self._broker.list_keys(queue)
        ]
        return reply(KeyList(keys), rows=len(keys))

    async def remove_key(self, request: Request) -> Response:
        if not await self._broker.remove_key(request.params["queue"], request.params["key"]):
            raise HttpError(404, "unknown_key", "there is no such key on this queue")
        self._gate.forget_keys()
        return reply(Done())


def _changes(body: Any, name: str) -> tuple[dict[str, Any], Any]:
    """The options that were sent, by our names; and the secret, which is no option."""
    changes = {key: value for key, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    changes.pop("name", None)
    secret = changes.pop("secret", msgspec.UNSET)
    if "visibility_ms" in changes:
        if "lease_ms" in changes:
            raise HttpError(422, "invalid_value", "visibility_ms is lease_ms; send one", field="visibility_ms")
        changes["lease_ms"] = changes.pop("visibility_ms")
    if isinstance(changes.get("dlq"), str):
        if changes["dlq"] != f"{name}.dlq":
            raise HttpError(422, "invalid_value", f"dead letters of {name!r} are in {name}.dlq", field="dlq")
        changes["dlq"] = True
    return changes, secret


def _new_message(sent: PushOne | PushBody, secret: str | None, trace: bytes | None) -> NewMessage:
    assert isinstance(sent.payload, msgspec.Raw)
    payload, content = payloads.read(sent.payload, sent.encoding)
    headers = sent.headers
    if trace is not None and (headers is None or "traceparent" not in headers):
        headers = {**(headers or {}), "traceparent": trace.decode("latin-1")}
    if secret is not None:
        check_signature(secret, payload, sent.signature, system_clock())
    if sent.signature is not None:
        headers = {**(headers or {}), SIGNATURE_HEADER: sent.signature}
    return NewMessage(
        payload=payload,
        content=content,
        priority=sent.priority,
        delay_ms=sent.delay_ms,
        ttl_ms=sent.ttl_ms,
        key=sent.idempotency_key,
        headers=headers,
    )


def _imported(message: ImportedMessage) -> NewMessage:
    now = system_clock()
    payload, content = payloads.read(message.payload, message.encoding)
    if message.content == "text" and message.encoding is None:
        payload, content = msgspec.json.decode(payload, type=str).encode(), Content.TEXT
    elif message.content == "bytes" and message.encoding is None:
        payload, content = msgspec.json.decode(payload, type=str).encode(), Content.BYTES
    return NewMessage(
        payload=payload,
        content=content,
        priority=message.priority,
        delay_ms=max(0, (message.available_at or 0) - now) or None,
        ttl_ms=None if message.expires_at is None else max(1, message.expires_at - now),
        key=message.idempotency_key or (f"import:{message.uuid}" if message.uuid else None),
        headers=message.headers,
    )


def _pushed_many(receipts: Sequence[Any]) -> PushedMany:
    return PushedMany(
        [receipt.id for receipt in receipts],
        [position for position, receipt in enumerate(receipts) if receipt.duplicate],
    )


def _polled(message: LeasedMessage) -> PolledMessage:
    payload, encoding = payloads.show(message.payload, message.content)
    return PolledMessage(
        id=message.id,
        uuid=message.uuid,
        payload=payload,
        encoding=encoding,
        priority=message.priority,
        attempts=message.attempts,
        created_at=message.created_at,
        lease_expires_at=message.leased_until,
        token=message.token,
        idempotency_key=message.key,
        headers=message.headers,
    )


def _settled(
    items: Sequence[SettleItem],
    results: Sequence[Any],
    *,
    states: Sequence[State | None] = (),
    leased_until: int | None = None,
) -> Response:
    """One item that failed is an error; of many, each has its result."""
    shown = [
        SettledOne(item.id, result, states[number] if states else None)
        for number, (item, result) in enumerate(zip(items, results, strict=True))
    ]
    if len(shown) == 1 and shown[0].result == "stale":
        raise HttpError(409, "lease_lost", f"the lease on message {items[0].id} is no longer yours")
    if len(shown) == 1 and shown[0].result == "unknown":
        raise HttpError(404, "unknown_message", f"there is no message {items[0].id} here")
    return reply(SettledItems(shown, leased_until), rows=len(shown))


def _by_queue(request: Request, home: str, items: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    groups: dict[str, list[Any]] = {}
    for item in items:
        groups.setdefault(item.queue or home, []).append(item)
    for queue in groups:
        if not request.principal.may("read", queue):
            raise HttpError(403, "forbidden", f"no right on {queue!r}")
    yield from groups.items()


def _message_id(request: Request) -> tuple[str, int]:
    text = request.params["id"]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise HttpError(422, "invalid_value", "a message id is a whole number", field="id")
    return request.params["queue"], int(text)


def _next_lines(messages: Iterator[Message]) -> bytes:
    """Some hundred messages as lines; empty at the end."""
    encoded: list[bytes] = []
    for message in messages:
        encoded.append(msgspec.json.encode(message_view(message)) + b"\n")
        if len(encoded) >= 256:
            break
    return b"".join(encoded)
