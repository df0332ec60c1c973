"""Penstock through its own asynchronous SDK. As in a user's program, the callers share one client, which joins
their single pushes and acks into batches."""

from __future__ import annotations

import importlib.util
from typing import Any

from .base import Client
from .penstock_http import PenstockServer


class PenstockSdk(PenstockServer):
    key, label = "penstock-sdk", "Penstock, SDK"
    library = "penstock.aio, one client shared by all callers"
    batch_form = "push_many, lease(n), ack_many; the client joins single calls"

    @classmethod
    def missing(cls) -> str | None:
        if importlib.util.find_spec("penstock.aio") is None:
            return "penstock.aio is not in this version"
        return super().missing()

    async def connect(self, queue: str, clients: int) -> list[Client]:
        from penstock import aio

        shared = aio.connect(f"http://127.0.0.1:{self.port}")
        handle = shared.queue(queue)
        return [SdkClient(shared, handle) for _ in range(clients)]


class SdkClient(Client):
    def __init__(self, shared: Any, queue: Any) -> None:
        super().__init__()
        self.shared, self.queue = shared, queue

    async def push(self, batch: list[str]) -> None:
        if len(batch) == 1:
            await self.queue.push(batch[0])
        else:
            await self.queue.push_many(batch)
        self.pushed += len(batch)

    async def pop(self, count: int) -> list[Any]:
        return list(await self.queue.lease(count))

    async def ack(self, popped: list[Any]) -> None:
        if len(popped) == 1:
            await self.queue.ack(popped[0])
        elif lost := await self.queue.ack_many(popped):
            raise RuntimeError(f"{len(lost)} leases were lost")
        self.acked += len(popped)

    async def close(self) -> None:
        await self.shared.close()
