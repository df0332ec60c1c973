"""Awa, whose own workers take jobs, run a handler, and complete the jobs in the background."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from .base import FILL_STEP, PAYLOAD_BYTES, Order, Orders, System, text

QUEUE = "q"
# The number that its documentation recommends for queues of short jobs.
WORKERS = 1_024
# Connections in addition to those of the clients: the workers claim and complete jobs and send heartbeats.
WORKER_CONNECTIONS = 10


@dataclass
class BenchJob:
    p: str


class Awa(System):
    key, label, module, package = "awa", "Awa", "awa", "awa-pg"
    client = f"awa.AsyncClient with {WORKERS} workers; a job counts when its handler returns"
    batch_form = "enqueue_many_copy; its workers choose their own batches to claim and complete"

    async def prepare(self) -> None:
        client = self._open(1)
        await client.migrate()
        await client.install_queue_storage()
        await client.close()

    def _open(self, clients: int) -> Any:
        from awa import AsyncClient

        # Awa requires a host in the URL, although the socket's folder replaces it.
        url = self.url.replace("@/", "@localhost/")
        return AsyncClient(url, max_connections=clients + WORKER_CONNECTIONS)

    async def connect(self, clients: int) -> list[Any]:
        self._client, self._orders = self._open(clients), Orders()

        @self._client.task(BenchJob, queue=QUEUE)
        async def handle(_job: Any) -> None:
            await self._orders.handle()

        await self._client.start([(QUEUE, WORKERS)])
        async with AsyncExitStack() as connections:
            # Opens the pool's connections before the clock starts.
            for _ in range(clients):
                await connections.enter_async_context(await self._client.transaction())
        return [AwaClient(self._client, self._orders) for _ in range(clients)]

    async def close(self) -> None:
        self._orders.release(Order(0), WORKERS)
        await self._client.shutdown()
        await self._client.close()

    async def fill(self, count: int) -> None:
        client = self._open(1)
        producer = AwaClient(client, Orders())
        for _ in range(0, count, FILL_STEP):
            await producer.push(FILL_STEP)
        await client.close()


class AwaClient:
    def __init__(self, client: Any, orders: Orders) -> None:
        self._client = client
        self._job = BenchJob(text(PAYLOAD_BYTES - 9))
        self.pop, self.ack = orders.pop, orders.ack

    async def push(self, count: int) -> None:
        if count == 1:
            await self._client.insert(self._job, queue=QUEUE)
        else:
            await self._client.enqueue_many_copy([self._job] * count, queue=QUEUE)
