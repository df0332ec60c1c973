"""The systems that are compared: Penstock's SDK, and the two table layouts that most queues on PostgreSQL have.

Each client of the others has a connection of its own and commits each call by itself, with every statement prepared.
"""

from __future__ import annotations

from typing import Any, Protocol

import psycopg

from penstock import aio

LEASE_MS = 60_000


class Client(Protocol):
    async def push(self, payloads: list[bytes]) -> None: ...

    async def pop(self, count: int) -> list[Any]: ...

    async def ack(self, popped: list[Any]) -> None: ...


class System(Protocol):
    name: str

    async def open(self, url: str, clients: int) -> list[Client]: ...

    async def close(self) -> None: ...


class Penstock:
    name = "penstock"

    async def open(self, url: str, clients: int) -> list[Client]:
        join = "&" if "?" in url else "?"
        self._client = aio.connect(f"{url}{join}schema=bench_penstock")
        queue = await self._client.create_queue("q", exist_ok=True, lease_ms=LEASE_MS)
        return [PenstockClient(queue) for _ in range(clients)]

    async def close(self) -> None:
        await self._client.close()


class PenstockClient:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def push(self, payloads: list[bytes]) -> None:
        if len(payloads) == 1:
            await self._queue.push(payloads[0])
        else:
            await self._queue.push_many(payloads)

    async def pop(self, count: int) -> list[Any]:
        return list(await self._queue.lease(count))

    async def ack(self, popped: list[Any]) -> None:
        if len(popped) == 1:
            await self._queue.ack(popped[0])
        elif await self._queue.ack_many(popped):
            raise RuntimeError("leases were lost")


class Raw:
    """A layout as SQL: one statement a call."""

    name: str
    tables: str
    push_sql: str
    pop_sql: str
    ack_sql: str

    async def open(self, url: str, clients: int) -> list[Client]:
        self._connections = [
            await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0) for _ in range(clients)
        ]
        for statement in self.tables.split(";"):
            await self._connections[0].execute(statement.encode())
        return [RawClient(self, connection) for connection in self._connections]

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


class RawClient:
    def __init__(self, system: Raw, connection: psycopg.AsyncConnection[Any]) -> None:
        self._system = system
        self._connection = connection

    async def push(self, payloads: list[bytes]) -> None:
        await self._connection.execute(self._system.push_sql.encode(), (payloads,))

    async def pop(self, count: int) -> list[Any]:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(self._system.pop_sql.encode(), (count,))
        return await cursor.fetchall()

    async def ack(self, popped: list[Any]) -> None:
        await self._connection.execute(self._system.ack_sql.encode(), ([row[0] for row in popped],))


class SkipLocked(Raw):
    """As pgmq and most others: one table, and a lease is an update of the row."""

    name = "skip locked"
    tables = """
        DROP TABLE IF EXISTS bench_one;
        CREATE TABLE bench_one (id bigserial PRIMARY KEY, read_ct int NOT NULL DEFAULT 0,
          enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL DEFAULT now(), payload bytea);
        CREATE INDEX ON bench_one (vt)"""
    push_sql = "INSERT INTO bench_one (payload) SELECT unnest(%s::bytea[])"
    pop_sql = """
        WITH head AS (SELECT id FROM bench_one WHERE vt <= clock_timestamp() ORDER BY id LIMIT %s
                      FOR UPDATE SKIP LOCKED)
        UPDATE bench_one m SET vt = clock_timestamp() + interval '60 s', read_ct = read_ct + 1 FROM head
         WHERE m.id = head.id RETURNING m.id, m.read_ct, m.enqueued_at, m.vt, m.payload"""
    ack_sql = "DELETE FROM bench_one WHERE id = ANY(%s)"


class Split(Raw):
    """Bodies, what is ready and what is leased in three tables; a lease moves a small row."""

    name = "split tables"
    tables = """
        DROP TABLE IF EXISTS bench_message, bench_ready, bench_lease;
        CREATE TABLE bench_message (id bigserial PRIMARY KEY, payload bytea);
        CREATE TABLE bench_ready (id bigint PRIMARY KEY);
        CREATE TABLE bench_lease (id bigint PRIMARY KEY, until timestamptz NOT NULL);
        CREATE INDEX ON bench_lease (until)"""
    push_sql = """
        WITH new AS (INSERT INTO bench_message (payload) SELECT unnest(%s::bytea[]) RETURNING id)
        INSERT INTO bench_ready SELECT id FROM new"""
    pop_sql = """
        WITH head AS (SELECT id FROM bench_ready ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED),
             gone AS (DELETE FROM bench_ready r USING head WHERE r.id = head.id RETURNING r.id),
             kept AS (INSERT INTO bench_lease SELECT id, clock_timestamp() + interval '60 s' FROM gone RETURNING id)
        SELECT m.id, m.payload FROM kept JOIN bench_message m ON m.id = kept.id"""
    ack_sql = """
        WITH done AS (DELETE FROM bench_lease WHERE id = ANY(%s) RETURNING id)
        DELETE FROM bench_message m USING done WHERE m.id = done.id"""


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Penstock, SkipLocked, Split)}  # type: ignore[dict-item]
