"""Long polling that never leases messages to a client that has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.commands import Settled, SettleItem
from penstock.core.model import Delivery
from penstock.server.http.messages import Request
from penstock.wire.http_errors import Disconnected, HttpError

T = TypeVar("T")
# Lease time between a take's lease and its ack; the queue's own may be too short.
TAKING_MS = 30_000


async def poll(
    broker: Broker,
    settings: Settings,
    request: Request,
    queue: str | None,
    *,
    scope: str | None = None,
    limit: int,
    lease_ms: int | None = None,
    wait_ms: int = 0,
    worker: str | None = None,
    await_queue: bool = False,
) -> list[Delivery]:
    """Lease messages from a queue or a scope. The application releases those it cannot deliver."""
    if request.exchange.peer_closed:
        raise Disconnected
    wait_ms = min(wait_ms, settings.wait_ms_max)
    lease = partial(
        broker.lease,
        queue,
        scope=scope,
        limit=limit,
        lease_ms=lease_ms,
        worker=worker,
        wait_ms=wait_ms,
        await_queue=await_queue,
    )
    request.leased = await (_lease_while_connected(broker, settings, request, lease) if wait_ms else lease())
    return request.leased


async def take(
    broker: Broker,
    settings: Settings,
    request: Request,
    queue: str,
    *,
    limit: int,
    wait_ms: int = 0,
    await_queue: bool = False,
) -> list[Delivery]:
    """Take messages, which removes them; a waiting take leases first and acks only if the client is still there."""
    if not wait_ms:
        if request.exchange.peer_closed:
            raise Disconnected
        return await broker.take(queue, limit=limit)
    messages = await poll(
        broker,
        settings,
        request,
        queue,
        limit=limit,
        lease_ms=TAKING_MS,
        wait_ms=wait_ms,
        await_queue=await_queue,
    )
    if messages:
        if request.exchange.peer_closed:
            raise Disconnected
        results = await broker.ack(queue, [SettleItem(message.id, message.token) for message in messages])
        request.leased = []
        # Messages whose lease expired meanwhile may belong to another worker.
        messages = [message for message, result in zip(messages, results, strict=True) if result is Settled.OK]
    return messages


def check_polls(waiting: int, settings: Settings) -> None:
    """Raise if too many polls are waiting. Called when a poll starts to wait: those that find messages do not count."""
    if waiting >= settings.polls_max:
        raise HttpError(
            429,
            "too_many_polls",
            f"too many polls are waiting ({waiting})",
            hint="poll with no wait, or raise the setting polls_max",
            headers={"retry-after": "1"},
        )


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, and cancel it if the client disconnects."""
    working = asyncio.ensure_future(work)
    disconnected = request.exchange.wait_closed()
    try:
        await asyncio.wait((working, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        working.cancel()
        disconnected.cancel()


async def _lease_while_connected(
    broker: Broker, settings: Settings, request: Request, lease: Callable[..., Awaitable[list[Delivery]]]
) -> list[Delivery]:
    """Lease with a wait that ends if the client disconnects; raise if too many polls are waiting."""
    task = asyncio.current_task()
    assert task is not None
    disconnected: asyncio.Future[None] | None = None
    settled = False

    def hang_up(_: asyncio.Future[None]) -> None:
        if not settled:
            task.cancel()

    def watch() -> None:
        nonlocal disconnected
        check_polls(broker.polls, settings)
        disconnected = request.exchange.wait_closed()
        disconnected.add_done_callback(hang_up)
        broker.polls += 1

    try:
        return await lease(on_wait=watch)
    except asyncio.CancelledError:
        if disconnected is not None and disconnected.done() and task.uncancel() == 0:
            raise Disconnected from None
        raise
    finally:
        settled = True
        if disconnected is not None:
            broker.polls -= 1
            disconnected.cancel()
