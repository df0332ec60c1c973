"""Penstock through its own SDK.

As in a real program, all callers share one client, which batches their single pushes and acks. Each worker has its own
client; workers run as tasks, or as threads with the synchronous SDK.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .base import Client, Worker, handle
from .penstock_http import PenstockServer


class PenstockSdk(PenstockServer):
    key, label = "penstock-sdk", "Penstock, SDK"
    library = "penstock.aio, one client shared by all callers"
    batch_form = "push_many, lease(n), ack_many; the client batches single calls"
    worker_form = "queue.worker with its defaults and its own client: leases ahead, acks in the background"

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

    async def hire(self, queue: str, count: int) -> list[Worker]:
        from penstock import aio

        return [SdkWorker(aio.connect(f"http://127.0.0.1:{self.port}"), queue) for _ in range(count)]


class PenstockThreads(PenstockSdk):
    key, label = "penstock-threads", "Penstock, SDK with threads"
    library = "penstock, a client and a thread for each worker"
    batch_form = None

    async def hire(self, queue: str, count: int) -> list[Worker]:
        import penstock

        return [ThreadWorker(penstock.connect(f"http://127.0.0.1:{self.port}"), queue) for _ in range(count)]


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


class SdkWorker(Worker):
    """A worker of the SDK. A message counts once the server has responded to its ack."""

    def __init__(self, client: Any, queue: str) -> None:
        super().__init__()
        self.client = client
        self.handled: deque[Any] = deque()
        self.worker = client.queue(queue).worker(self.handler())

    def handler(self) -> Callable[[Any], Any]:
        async def look(message: Any) -> None:
            handle(message.payload)
            self.handled.append(message)

        return look

    def count(self) -> int:
        while self.handled and self.handled[0].settled:
            if self.handled.popleft().lost:
                raise RuntimeError("a lease was lost")
            self.acked += 1
        return self.acked

    async def run(self) -> None:
        await self.worker.run()

    def stop(self) -> None:
        self.worker.stop()

    async def close(self) -> None:
        await self.client.close()


class ThreadWorker(SdkWorker):
    def handler(self) -> Callable[[Any], Any]:
        def look(message: Any) -> None:
            handle(message.payload)
            self.handled.append(message)

        return look

    async def run(self) -> None:
        with ThreadPoolExecutor(1) as thread:
            await asyncio.get_running_loop().run_in_executor(thread, lambda: self.worker.run(handle_signals=False))

    async def close(self) -> None:
        await asyncio.to_thread(self.client.close)
