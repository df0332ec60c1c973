"""RabbitMQ: a durable queue, persistent messages, publisher confirms, consumers with a prefetch.

Up to version 3, a classic queue syncs before it confirms. From version 4 only a quorum queue does.

The client is pika on its asyncio connection, which moves more messages than aio-pika for the same CPU time. All files
of the node (cookie, database, logs) are in the temporary folder, and it has its own port mapper.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from pathlib import Path
from typing import Any

from .base import Client, Peer, Worker, handle
from .process import first_line, free_port

# The program itself, because the wrapper in /usr/sbin requires the system's user and folders.
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
# RabbitMQ's documentation finds the best throughput at 100 to 300.
WORKER_PREFETCH = 200


class RabbitMQ(Peer):
    key, label = "rabbitmq", "RabbitMQ"
    program, source = SERVER, "apt-get install -y --no-install-recommends rabbitmq-server"
    library, module = "pika", "pika"
    durability = "durable queue (classic; from RabbitMQ 4 quorum), persistent messages, publisher confirms"
    batch_form = "n publishes, then their confirms; prefetch n; one ack for all (multiple)"
    worker_form = f"basic_consume with a prefetch of {WORKER_PREFETCH}, basic_ack of each message, without a response"
    confirms_acks = False
    keeps_running = True

    async def launch(self) -> None:
        mapper, distribution, self.port = free_port(), free_port(), free_port()
        base = self.folder
        (base / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        (base / "plugins").write_text("[].\n")
        env = {
            **os.environ,
            "HOME": str(base),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "plugins"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_NODENAME": f"penstock-bench-{self.port}@localhost",
            "RABBITMQ_PID_FILE": str(base / "pid"),
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
        }
        # A port mapper that the node starts by itself would keep running after the benchmark.
        self.start(["epmd", "-port", str(mapper), "-address", "127.0.0.1"], env)
        await self.until_open(mapper)
        self.start([SERVER], env)
        await self.until_open(self.port)

    async def _open(self) -> tuple[Any, Any]:
        import pika
        from pika.adapters.asyncio_connection import AsyncioConnection

        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0, socket_timeout=30)
        connection = AsyncioConnection(
            parameters,
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, problem: opened.set_exception(RuntimeError(str(problem))),
            custom_ioloop=loop,
        )
        await asyncio.wait_for(opened, 30)
        ready: asyncio.Future[Any] = loop.create_future()
        connection.channel(on_open_callback=ready.set_result)
        return connection, await asyncio.wait_for(ready, 30)

    async def create(self, queue: str) -> None:
        connection, channel = await self._open()
        declared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        kind = "classic" if int(self.version().split(".")[0]) < 4 else "quorum"
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind}, callback=declared.set_result)
        await asyncio.wait_for(declared, 30)
        connection.close()

    async def drop(self, queue: str) -> None:
        connection, channel = await self._open()
        deleted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel.queue_delete(queue, callback=deleted.set_result)
        await asyncio.wait_for(deleted, 30)
        connection.close()

    async def connect(self, queue: str, clients: int) -> list[Client]:
        found: list[Client] = []
        for _ in range(clients):
            connection, channel = await self._open()
            client = RabbitClient(connection, channel, queue)
            await client.confirm()
            found.append(client)
        return found

    async def hire(self, queue: str, count: int) -> list[Worker]:
        return [RabbitWorker(*await self._open(), queue) for _ in range(count)]

    def version(self) -> str:
        found = [path.name for path in Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")]
        found_version = re.search(r"[\d.]+$", found[0]) if found else None
        return found_version[0] if found_version else first_line([SERVER, "--version"])


class RabbitClient(Client):
    def __init__(self, connection: Any, channel: Any, queue: str) -> None:
        import pika

        super().__init__()
        self.connection, self.channel, self.queue = connection, channel, queue
        self.persistent = pika.BasicProperties(delivery_mode=2)
        self.published = self.confirmed = 0
        self.early: set[int] = set()
        self.delivered: deque[int] = deque()
        self.wanted = 0
        self.prefetch: int | None = None
        self.waiter: asyncio.Future[None] | None = None
        channel.add_on_close_callback(self._lost)

    async def confirm(self) -> None:
        chosen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.channel.confirm_delivery(self._confirmed, callback=chosen.set_result)
        await asyncio.wait_for(chosen, 30)

    def _lost(self, _: Any, problem: Exception) -> None:
        if self.waiter and not self.waiter.done():
            self.waiter.set_exception(problem)

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            raise RuntimeError(f"the broker refused a message: {method.NAME}")
        before = self.confirmed
        if method.multiple:
            self.confirmed = max(self.confirmed, method.delivery_tag)
        else:
            self.early.add(method.delivery_tag)
        while self.confirmed + 1 in self.early:
            self.confirmed += 1
        self.early = {tag for tag in self.early if tag > self.confirmed}
        self.pushed += self.confirmed - before
        if self.confirmed == self.published:
            self._wake()

    def _wake(self) -> None:
        if self.waiter and not self.waiter.done():
            self.waiter.set_result(None)

    async def push(self, batch: list[str]) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        for payload in batch:
            self.channel.basic_publish("", self.queue, payload.encode(), self.persistent)
        self.published += len(batch)
        await self.waiter

    async def _consume(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        limited: asyncio.Future[Any] = loop.create_future()
        self.channel.basic_qos(prefetch_count=count, callback=limited.set_result)
        await limited
        self.prefetch = count
        self.consumer = self.channel.basic_consume(self.queue, self._delivery)

    def _delivery(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        self.delivered.append(method.delivery_tag)
        if len(self.delivered) == self.wanted:
            self._wake()

    async def pop(self, count: int) -> list[int]:
        if self.prefetch is None:
            await self._consume(count)
        self.wanted = count
        if len(self.delivered) < count:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        self.wanted = 0
        return [self.delivered.popleft() for _ in range(count)]

    async def ack(self, popped: list[int]) -> None:
        self.channel.basic_ack(popped[-1], multiple=True)
        self.acked += len(popped)

    async def release(self) -> None:
        if self.prefetch is None:
            return
        cancelled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.channel.basic_cancel(self.consumer, callback=cancelled.set_result)
        await cancelled
        self.prefetch = None
        if self.delivered:
            self.channel.basic_nack(self.delivered[-1], multiple=True, requeue=True)
            self.delivered.clear()

    async def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()


class RabbitWorker(Worker):
    def __init__(self, connection: Any, channel: Any, queue: str) -> None:
        super().__init__()
        self.connection, self.channel, self.queue = connection, channel, queue
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel.add_on_close_callback(self._lost)

    def _lost(self, _: Any, problem: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(problem)

    async def run(self) -> None:
        limited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.channel.basic_qos(prefetch_count=WORKER_PREFETCH, callback=limited.set_result)
        await limited
        self.channel.basic_consume(self.queue, self._delivery)
        await self.ended

    def _delivery(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        if self.stopping:
            return
        handle(body)
        channel.basic_ack(method.delivery_tag)
        self.acked += 1

    def stop(self) -> None:
        super().stop()
        if not self.ended.done():
            self.ended.set_result(None)

    async def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()
