"""A poll that never leases to a client that has gone."""

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
# Between a take's lease and its ack; the queue's own may be shorter than that takes.
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
    """Lease for this request's client, from a queue or a scope. The application gives back what does not leave."""
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
    request.leased = await (_attentively(broker, settings, request, lease) if wait_ms else lease())
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
    """Take at once; or lease, and only when the client is still there finish: what is taken is gone."""
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
        # What came back meanwhile is another's.
        messages = [message for message, result in zip(messages, results, strict=True) if result is Settled.OK]
    return messages


def check_polls(waiting: int, settings: Settings) -> None:
    """Refuse one more poll when as many wait as may. Asked when the waiting begins: those at work hold no place."""
    if waiting >= settings.polls_max:
        raise HttpError(
            429,
            "too_many_polls",
            f"too many polls are waiting ({waiting})",
            hint="poll with no wait, or raise the setting polls_max",
            headers={"retry-after": "1"},
        )


async def while_here(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Work that ends when its client hangs up."""
    working = asyncio.ensure_future(work)
    leaving = request.exchange.leaving()
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _attentively(
    broker: Broker, settings: Settings, request: Request, lease: Callable[..., Awaitable[list[Delivery]]]
) -> list[Delivery]:
    """A lease that is cancelled when its client hangs up while it waits, and refused when too many wait already."""
    task = asyncio.current_task()
    assert task is not None
    leaving: asyncio.Future[None] | None = None
    settled = False

    def hang_up(_: asyncio.Future[None]) -> None:
        if not settled:
            task.cancel()

    def watch() -> None:
        nonlocal leaving
        check_polls(broker.polls, settings)
        leaving = request.exchange.leaving()
        leaving.add_done_callback(hang_up)
        broker.polls += 1

    try:
        return await lease(on_wait=watch)
    except asyncio.CancelledError:
        if leaving is not None and leaving.done() and task.uncancel() == 0:
            raise Disconnected from None
        raise
    finally:
        settled = True
        if leaving is not None:
            broker.polls -= 1
            leaving.cancel()
