"""A poll that never leases to a client that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from penstock.broker import Broker
from penstock.commands import SettleItem
from penstock.model import LeasedMessage
from penstock.server.http import Disconnected, Request


async def poll(
    broker: Broker,
    request: Request,
    queue: str,
    *,
    limit: int,
    lease_ms: int | None = None,
    wait_ms: int = 0,
    take: bool = False,
    worker: str | None = None,
) -> list[LeasedMessage]:
    """Lease (or take) for this request's client; what it can no longer receive is given back at once."""

    async def attempt(wait_ms: int) -> list[LeasedMessage]:
        if take:
            return await broker.take(queue, limit=limit, wait_ms=wait_ms)
        return await broker.lease(queue, limit=limit, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms)

    if request.gone:
        raise Disconnected
    messages = await attempt(0)
    if not messages and wait_ms:
        messages = await _wait(broker, request, attempt(wait_ms))
    if messages and request.gone:
        await give_back(broker, messages)
        raise Disconnected
    return messages


async def _wait(broker: Broker, request: Request, attempt: Awaitable[list[LeasedMessage]]) -> list[LeasedMessage]:
    polling = asyncio.ensure_future(attempt)
    leaving = asyncio.ensure_future(request.wait_for_disconnect())
    broker.polls += 1
    try:
        await asyncio.wait((polling, leaving), return_when=asyncio.FIRST_COMPLETED)
        if polling.done():
            messages: list[LeasedMessage] = polling.result()
            if leaving.done():
                await give_back(broker, messages)
                raise Disconnected
            return messages
        raise Disconnected
    finally:
        broker.polls -= 1
        for task in (polling, leaving):
            if not task.done():
                task.cancel()


async def give_back(broker: Broker, messages: Sequence[LeasedMessage]) -> None:
    """Release leases that their client cannot have seen. A taken message has no lease: at most once."""
    by_queue: dict[str, list[SettleItem]] = {}
    for message in messages:
        if message.token:
            by_queue.setdefault(message.queue, []).append(SettleItem(message.id, message.token))
    for queue, items in by_queue.items():
        await broker.release(queue, items)
        broker.given_back += len(items)
