"""The tree API, `/api/v1`: namespace, task, queue; messages are acknowledged by transaction id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.commands import Push
from penstock.core.ids import check_scope, message_id_of
from penstock.core.model import Delivery, PushItem, PushReceipt, QueueOptions
from penstock.errors import BatchTooLarge, InvalidInput, KeyTaken, PenstockError, TryLater, UnknownQueue
from penstock.server.api.polling import poll
from penstock.server.api.queues.mapping import check_dlq
from penstock.server.api.tree.routes import tree_routes
from penstock.server.api.tree.settling import Settling, transaction_id
from penstock.server.auth import Principal
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Right, Route
from penstock.server.signatures import Signatures
from penstock.wire import payloads
from penstock.wire import tree as shapes
from penstock.wire.http_errors import HttpError
from penstock.wire.signatures import SIGNATURE_NAME, check_signature

# Options of a queue that its first push creates.
TREE_OPTIONS = QueueOptions(lease_ms=300_000, max_attempts=4, backoff="fixed")
# Messages with their positions in the request.
Numbered = list[tuple[int, PushItem]]

configure_body = msgspec.json.Decoder(shapes.ConfigureBody)
push_body = msgspec.json.Decoder(shapes.PushBody)
ack_body = msgspec.json.Decoder(shapes.Acknowledgment)
ack_batch = msgspec.json.Decoder(shapes.AckBatch)


class Tree:
    def __init__(self, broker: Broker, settings: Settings, signatures: Signatures) -> None:
        self._broker = broker
        self._settings = settings
        self._signatures = signatures
        self._settling = Settling(broker)

    def routes(self) -> list[Route]:
        return tree_routes(self)

    async def configure(self, request: Request) -> Response:
        body = await request.json(configure_body)
        path = request.named_queue = f"{body.ns}/{body.task}/{body.queue}"
        _require(request, "admin", path)
        changes = shapes.option_changes(body.options)
        check_dlq(request, path, changes.get("dlq"))
        configured = await self._broker.configure(path, changes, create=TREE_OPTIONS)
        self._settling.forget_options(path)
        return reply(
            shapes.Configured(body.ns, body.task, body.queue, shapes.options_view(configured.info.options)), 201
        )

    # Pushing

    async def push(self, request: Request) -> Response:
        body = await request.json(push_body)
        items = body.items
        if len(items) > self._settings.batch_max:
            raise BatchTooLarge(f"{len(items)} items in one push", hint=f"at most {self._settings.batch_max}")
        paths = {item.path for item in items}
        request.named_queue = paths.pop() if len(paths) == 1 else f"{len(paths)} queues"
        for item in items:
            _require(request, "push", item.path)
        results: dict[int, shapes.PushedItem | PenstockError] = {}
        groups: dict[str, Numbered] = {}
        for number, item in enumerate(items):
            try:
                if (taken := await self._taken(item)) is not None:
                    results[number] = taken
                    continue
                message = await self._new_message(request, item)
            except PenstockError as error:
                if body.config.batch_mode:
                    raise
                results[number] = error
            else:
                groups.setdefault(item.path, []).append((number, message))
        create = TREE_OPTIONS if body.config.auto_create else None
        push = self._push_together if body.config.batch_mode else self._push_apart
        for number, result in await push(groups, create):
            results[number] = _pushed(items[number], result) if isinstance(result, PushReceipt) else result
        return _answer(items, [results[number] for number in range(len(items))])

    async def _taken(self, item: shapes.Item) -> shapes.PushedItem | None:
        """Return the duplicate if the transaction id is the UUID of a message that was pushed without one."""
        name = item.transaction_id
        if name is None or message_id_of(name, self._broker.store.store_id) is None:
            return None
        [found] = await self._broker.locate([name])
        if found is not None and found[0] != item.path:
            raise KeyTaken(item.path, name)
        return shapes.PushedItem(id=str(UUID(name)), transaction_id=name, status="duplicate")

    async def _new_message(self, request: Request, item: shapes.Item) -> PushItem:
        payload, content = payloads.read(item.payload, item.encoding)
        secret = await self._signatures.secret(item.path)
        if secret is not None:
            check_signature(secret, payload, item.signature)
        headers = {}
        if item.transaction_id is not None:
            headers[payloads.TRANSACTION_ID] = item.transaction_id
        if request.traceparent is not None:
            headers["traceparent"] = request.traceparent
        if item.signature is not None:
            headers[SIGNATURE_NAME] = item.signature
        return PushItem(payload=payload, content=content, key=item.transaction_id, headers=headers or None)

    async def _push_together(
        self, groups: dict[str, Numbered], create: QueueOptions | None
    ) -> list[tuple[int, PushReceipt | PenstockError]]:
        if not groups:
            return []
        commands = [self._command(path, group, create) for path, group in groups.items()]
        outcomes = await self._broker.transact(commands)
        return [
            (number, receipt)
            for group, outcome in zip(groups.values(), outcomes, strict=True)
            for (number, _), receipt in zip(group, outcome.receipts, strict=True)
        ]

    def _command(self, path: str, group: Numbered, create: QueueOptions | None) -> Push:
        return self._broker.push_command(path, [message for _, message in group], create=create, global_keys=True)

    async def _push_apart(
        self, groups: dict[str, Numbered], create: QueueOptions | None
    ) -> list[tuple[int, PushReceipt | PenstockError]]:
        """Push each queue's items in one batch; if that fails, one by one, so that each succeeds or fails alone."""
        done = await asyncio.gather(*(self._push_group(path, group, create) for path, group in groups.items()))
        return [each for group in done for each in group]

    async def _push_group(
        self, path: str, group: Numbered, create: QueueOptions | None
    ) -> list[tuple[int, PushReceipt | PenstockError]]:
        messages = [message for _, message in group]
        try:
            receipts = await self._broker.push(path, messages, create=create, global_keys=True)
        except (InvalidInput, KeyTaken, TryLater) as error:
            if len(group) == 1:
                return [(group[0][0], error)]
            alone = await asyncio.gather(*(self._push_group(path, [each], create) for each in group))
            return [result for (result,) in alone]
        except PenstockError as error:
            return [(number, error) for number, _ in group]
        return [(number, receipt) for (number, _), receipt in zip(group, receipts, strict=True)]

    # Popping

    async def pop_namespace(self, request: Request) -> Response:
        return await self._pop(request, None, request.params["ns"])

    async def pop_task(self, request: Request) -> Response:
        return await self._pop(request, None, f"{request.params['ns']}/{request.params['task']}")

    async def pop_queue(self, request: Request) -> Response:
        return await self._pop(request, "/".join(request.params[part] for part in ("ns", "task", "name")), None)

    async def _pop(self, request: Request, queue: str | None, scope: str | None) -> Response:
        query = request.query(shapes.PopQuery)
        if scope is not None:
            check_scope(scope)
        _require(request, "consume", queue)
        wait_ms = 0
        if query.wait:
            wait_ms = self._settings.tree_timeout_ms if query.timeout is None else query.timeout
        try:
            messages = await poll(
                self._broker,
                self._settings,
                request,
                queue,
                scope=scope,
                limit=min(query.batch, self._settings.tree_batch_max, self._settings.batch_max),
                wait_ms=wait_ms,
                worker=query.worker or self._settings.worker_id,
                await_queue=True,
            )
        except UnknownQueue:
            messages = []
        if not messages:
            return Response(204, rows=0)
        self._settling.remember(messages)
        return reply(shapes.Popped([_popped(message) for message in messages]), rows=len(messages))

    # Settling

    async def ack(self, request: Request) -> Response:
        body = await request.json(ack_body)
        [result] = await self._settling.settle(_principal(request), [body])
        if result.status == "stale":
            raise HttpError(
                409,
                "lease_lost",
                f"message {body.transaction_id!r} is not leased, or leased to another worker",
                hint="pop it again",
            )
        if result.status == "unknown":
            raise HttpError(404, "unknown_message", f"message {body.transaction_id!r} does not exist")
        return reply(result, rows=1)

    async def ack_batch(self, request: Request) -> Response:
        sent = (await request.json(ack_batch)).acknowledgments
        if len(sent) > self._settings.batch_max:
            raise BatchTooLarge(f"{len(sent)} acknowledgments at once", hint=f"at most {self._settings.batch_max}")
        results = await self._settling.settle(_principal(request), sent)
        processed = sum(result.status not in ("stale", "unknown") for result in results)
        return reply(shapes.AckedBatch(processed, results), rows=processed)


def _principal(request: Request) -> Principal:
    principal: Principal = request.principal
    return principal


def _require(request: Request, right: Right, queue: str | None) -> None:
    if not _principal(request).may(right, queue):
        raise HttpError(403, "forbidden", f"permission denied: this key does not have the right to {right} here")


def _pushed(item: shapes.Item, receipt: PushReceipt) -> shapes.PushedItem:
    return shapes.PushedItem(
        id=receipt.uuid,
        transaction_id=item.transaction_id or receipt.uuid,
        status="duplicate" if receipt.duplicate else "queued",
    )


def _answer(items: Sequence[shapes.Item], results: Sequence[shapes.PushedItem | PenstockError]) -> Response:
    """Return 201 if all items were accepted, 207 with each status if some failed; raise the first error if all did."""
    shown = []
    first = results[0]
    for item, result in zip(items, results, strict=True):
        if isinstance(result, PenstockError):
            text = str(result.args[0])
            shown.append(
                shapes.PushedItem(transaction_id=item.transaction_id, status="failed", error=text, code=result.code)
            )
        else:
            shown.append(result)
    failed = sum(each.status == "failed" for each in shown)
    if isinstance(first, PenstockError) and failed == len(shown):
        raise first
    return reply(shapes.Pushed(shown), 207 if failed else 201, rows=len(shown))


def _popped(message: Delivery) -> shapes.PoppedMessage:
    payload, encoding = payloads.show(message.payload, message.content)
    headers = {name: value for name, value in (message.headers or {}).items() if name != payloads.TRANSACTION_ID}
    return shapes.PoppedMessage(
        id=message.uuid,
        transaction_id=transaction_id(message),
        payload=payload,
        encoding=encoding,
        queue=message.queue,
        created_at=payloads.rfc3339(message.created_at),
        retry_count=message.attempts - 1,
        lease_token=message.token,
        lease_expires_at=payloads.rfc3339(message.leased_until),
        headers=headers or None,
    )
