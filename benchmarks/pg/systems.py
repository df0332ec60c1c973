"""The measured systems: Penstock's SDK on the database without a server, and its peers, each through its own client.

Each client of a peer has its own connection, on which every call is one transaction, the fastest way that each peer
documents. Penstock's callers share one client, as in a real program.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

from .awa import Awa
from .base import LEASE_S, PAYLOAD_BYTES, System, text
from .node import GraphileWorker, PgBoss
from .oban import Oban


class Penstock(System):
    key, label, module, package = "penstock", "Penstock", "penstock", "penstock-mq"
    client = "penstock.aio, one client shared by all callers"
    batch_form = "push_many, lease(n), ack_many"

    async def prepare(self) -> None:
        await self.connect(1)
        await self.close()

    async def connect(self, clients: int) -> list[Any]:
        from penstock import aio

        self._client = aio.connect(self.url)
        queue = await self._client.create_queue("q", exist_ok=True, lease_ms=LEASE_S * 1000)
        return [PenstockClient(queue) for _ in range(clients)]

    async def close(self) -> None:
        await self._client.close()


class PenstockJournal(Penstock):
    """Penstock with a journal, as servers have by default: every change records an event in the same transaction."""

    key, label = "penstock-journal", "Penstock, journal on"

    async def prepare(self) -> None:
        from penstock.store.factory import open_store

        await asyncio.to_thread(lambda: open_store(self.url, journal=True).close())
        await super().prepare()


class PenstockClient:
    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._payload = bytes(PAYLOAD_BYTES)

    async def push(self, count: int) -> None:
        if count == 1:
            await self._queue.push(self._payload)
        else:
            await self._queue.push_many([self._payload] * count)

    async def pop(self, count: int) -> list[Any]:
        return list(await self._queue.lease(count))

    async def ack(self, popped: list[Any]) -> None:
        if len(popped) == 1:
            await self._queue.ack(popped[0])
        elif await self._queue.ack_many(popped):
            raise RuntimeError("leases were lost")


class Pgmq(System):
    key, label, module, package = "pgmq", "pgmq", "pgmq", "pgmq"
    client = "pgmq's PGMQueue over asyncpg, with the SQL that comes with it"
    batch_form = "send_batch, read(qty=n), delete_batch"

    async def prepare(self) -> None:
        import psycopg
        from pgmq.install import install_pgmq_from_sql

        with psycopg.connect(self.url) as connection:
            install_pgmq_from_sql(conn=connection)
            connection.execute("SELECT pgmq.create('q')")

    async def connect(self, clients: int) -> list[Any]:
        import asyncpg
        from pgmq.async_queue import PGMQueue

        self._connections = [await asyncpg.connect(self.url) for _ in range(clients)]
        queue = PGMQueue(pool=self, init_extension=False, vt=LEASE_S)  # It uses no pool if it gets a connection.
        return [PgmqClient(queue, connection) for connection in self._connections]

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def fill(self, count: int) -> None:
        import psycopg

        with psycopg.connect(self.url) as connection:
            # The array depends on `number`, so that PostgreSQL calls the function once per row.
            sql = """SELECT count(*) FROM generate_series(1, %s) AS number,
                     LATERAL pgmq.send_batch('q', array_fill(%s::jsonb, ARRAY[1000 + 0 * number]))"""
            connection.execute(sql, (count // 1000, f'{{"p": "{text(PAYLOAD_BYTES - 9)}"}}'))


class PgmqClient:
    def __init__(self, queue: Any, connection: Any) -> None:
        self._queue, self._connection = queue, connection
        self._message = {"p": text(PAYLOAD_BYTES - 9)}

    async def push(self, count: int) -> None:
        if count == 1:
            await self._queue.send("q", self._message, conn=self._connection)
        else:
            await self._queue.send_batch("q", [self._message] * count, conn=self._connection)

    async def pop(self, count: int) -> list[Any]:
        return await self._queue.read_batch("q", batch_size=count, conn=self._connection) or []

    async def ack(self, popped: list[Any]) -> None:
        if len(popped) == 1:
            await self._queue.delete("q", popped[0].msg_id, conn=self._connection)
        else:
            await self._queue.delete_batch("q", [each.msg_id for each in popped], conn=self._connection)


class PgQueuer(System):
    key, label, module, package = "pgqueuer", "PgQueuer", "pgqueuer", "pgqueuer"
    client = "its Queries over asyncpg; durability balanced: jobs are logged, their history is not"
    batch_form = "enqueue of lists, dequeue(batch_size=n), log_jobs of lists"

    async def prepare(self) -> None:
        (client,) = await self.connect(1)
        await client.queries.install()
        await client.queries.optimize_autovacuum()
        await self.close()

    async def connect(self, clients: int) -> list[Any]:
        import asyncpg
        from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment, QueryQueueBuilder
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.domain.settings import DBSettings, Durability
        from pgqueuer.queries import Queries

        settings = DBSettings(durability=Durability.balanced)
        self._connections = [await asyncpg.connect(self.url) for _ in range(clients)]
        return [
            PgQueuerClient(
                Queries(
                    AsyncpgDriver(connection),
                    qbe=QueryBuilderEnvironment(settings),
                    qbq=QueryQueueBuilder(settings),
                )
            )
            for connection in self._connections
        ]

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


class PgQueuerClient:
    def __init__(self, queries: Any) -> None:
        from pgqueuer.ports.repository import EntrypointExecutionParameter

        self.queries = queries
        self._payload = bytes(PAYLOAD_BYTES)
        self._entrypoints = {"q": EntrypointExecutionParameter(0)}
        self._manager = uuid4()

    async def push(self, count: int) -> None:
        if count == 1:
            await self.queries.enqueue("q", self._payload)
        else:
            await self.queries.enqueue(["q"] * count, [self._payload] * count, [0] * count)

    async def pop(self, count: int) -> list[Any]:
        lease = timedelta(seconds=LEASE_S)
        return list(await self.queries.dequeue(count, self._entrypoints, self._manager, None, lease))

    async def ack(self, popped: list[Any]) -> None:
        await self.queries.log_jobs([(job, "successful", None) for job in popped])


class Procrastinate(System):
    key, label, module, package = "procrastinate", "Procrastinate", "procrastinate", "procrastinate"
    client = "its JobManager over psycopg"
    batch_form = "batch_defer_jobs; fetch_job and finish_job one by one (it has no batch)"
    loops = True

    async def prepare(self) -> None:
        await self.connect(1)
        await self._app.schema_manager.apply_schema_async()
        await self.close()

    async def connect(self, clients: int) -> list[Any]:
        from procrastinate import App, PsycopgConnector
        from psycopg_pool import AsyncConnectionPool

        # Our own pool does not check its connections and does not begin a transaction for each call.
        settings = {"autocommit": True}
        self._pool = AsyncConnectionPool(self.url, min_size=clients, max_size=clients, kwargs=settings, open=False)
        await self._pool.open(wait=True)
        self._app = App(connector=PsycopgConnector())
        await self._app.open_async(self._pool)
        return [ProcrastinateClient(self._app.job_manager) for _ in range(clients)]

    async def close(self) -> None:
        await self._app.close_async()
        await self._pool.close()


class ProcrastinateClient:
    def __init__(self, manager: Any) -> None:
        from procrastinate.jobs import Job, Status

        self._manager = manager
        self._job = Job(
            queue="q",
            lock=None,
            queueing_lock=None,
            task_name="t",
            task_kwargs={"p": text(PAYLOAD_BYTES - 9)},
        )
        self._done = Status.SUCCEEDED
        self._worker: int | None = None

    async def push(self, count: int) -> None:
        await self._manager.batch_defer_jobs_async([self._job] * count)

    async def pop(self, count: int) -> list[Any]:
        if self._worker is None:
            self._worker = await self._manager.register_worker()
        found = [await self._manager.fetch_job(["q"], self._worker) for _ in range(count)]
        return [job for job in found if job is not None]

    async def ack(self, popped: list[Any]) -> None:
        for job in popped:
            await self._manager.finish_job(job, self._done, delete_job=True)


SYSTEMS: tuple[type[System], ...] = (
    Penstock,
    PenstockJournal,
    Pgmq,
    PgQueuer,
    Procrastinate,
    Awa,
    Oban,
    PgBoss,
    GraphileWorker,
)
OURS = ("penstock", "penstock-journal")
BY_KEY = {system.key: system for system in SYSTEMS}
