"""Redis Streams: XADD, XREADGROUP and XACK with one consumer group; every write waits for the append-only file."""

from __future__ import annotations

import re
from typing import Any

from .base import Client, Peer
from .process import first_line, free_port

GROUP = "bench"


class RedisStreams(Peer):
    key, label = "redis", "Redis Streams"
    program, debian = "redis-server", "redis-server"
    library, module = "redis", "redis"
    durability = "appendonly yes, appendfsync always"
    batch_form = "XADD in one pipeline, XREADGROUP COUNT, XACK of many"

    async def launch(self) -> None:
        self.port = free_port()
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "always",
            "no-appendfsync-on-rewrite": "no",
            # Snapshots and rewrites would only add work beside the load.
            "auto-aof-rewrite-percentage": 0,
            "save": "",
            "maxclients": 1000,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self.start(["redis-server", *arguments])
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
        found: list[Client] = []
        for number in range(clients):
            redis = self._client()
            await redis.initialize()
            found.append(RedisClient(redis, queue, f"c{number}"))
        return found

    def version(self) -> str:
        said = re.search(r"v=(\S+)", first_line(["redis-server", "--version"]))
        return said[1] if said else "unknown"


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
        found = await self.redis.xreadgroup(GROUP, self.name, {self.queue: ">"}, count=count)
        if not found:
            return []
        # A list of pairs in the second version of its protocol, a mapping to a list of lists in the third.
        entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
        return [entry[0] for entry in entries]

    async def ack(self, popped: list[bytes]) -> None:
        self.acked += await self.redis.xack(self.queue, GROUP, *popped)

    async def close(self) -> None:
        await self.redis.aclose()
