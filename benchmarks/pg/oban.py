"""Oban for Python, whose own workers take jobs, run a handler, and complete the jobs in the background."""

from __future__ import annotations

from typing import Any

from .base import FILL_STEP, PAYLOAD_BYTES, Order, Orders, System, text

QUEUE = "q"
WORKERS = 100
# Connections in addition to those of the clients: the queue fetches and acks jobs, and its leader does maintenance.
WORKER_CONNECTIONS = 10


class Oban(System):
    key, label, module, package = "oban", "Oban", "oban", "oban"
    client = f"its Oban with a limit of {WORKERS}; a job counts when its handler returns"
    batch_form = "enqueue_many; its queue chooses its own batches to fetch and complete"

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() and "oban is not installed (.venv/bin/pip install oban; it needs Python 3.12)"

    async def prepare(self) -> None:
        from oban.schema import install

        pool = await self._pool(1)
        await install(pool)
        await pool.close()

    async def _pool(self, clients: int) -> Any:
        from oban import Oban as Instance

        most = clients + WORKER_CONNECTIONS
        return await Instance.create_pool(dsn=self.url, min_size=most, max_size=most)

    async def connect(self, clients: int) -> list[Any]:
        return await self._start(clients, {QUEUE: WORKERS})

    async def _start(self, clients: int, queues: dict[str, int]) -> list[Any]:
        from oban import Oban as Instance
        from oban import worker

        orders = self._orders = Orders()

        @worker(queue=QUEUE)
        class Handler:
            async def process(self, _job: Any) -> None:
                await orders.handle()

        self._connections = await self._pool(clients)
        self._oban = Instance(pool=self._connections, queues=queues)
        await self._oban.start()
        return [ObanClient(self._oban, Handler, orders) for _ in range(clients)]

    async def close(self) -> None:
        self._orders.release(Order(0), WORKERS)
        await self._oban.stop()
        await self._connections.close()

    async def fill(self, count: int) -> None:
        (client,) = await self._start(1, {})
        for _ in range(0, count, FILL_STEP):
            await client.push(FILL_STEP)
        await self.close()


class ObanClient:
    def __init__(self, oban: Any, handler: Any, orders: Orders) -> None:
        self._oban, self._handler = oban, handler
        self._arguments = {"p": text(PAYLOAD_BYTES - 9)}
        self.pop, self.ack = orders.pop, orders.ack

    async def push(self, count: int) -> None:
        if count == 1:
            await self._oban.enqueue(self._handler.new(self._arguments))
        else:
            await self._oban.enqueue_many(*(self._handler.new(self._arguments) for _ in range(count)))
