"""The client, for a file, a database or a server."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from penstock.client._async.lease_renewer import LeaseRenewer
from penstock.client._async.queue import Queue
from penstock.client.types import Options, Page, Seconds, milliseconds
from penstock.client.urls import ServerUrl, parse, request_headers
from penstock.core.ids import NAME_LENGTH_MAX, check_queue_name, own_name
from penstock.core.limits import check_range, check_text
from penstock.core.model import QueueInfo
from penstock.errors import InvalidInput, QueueExists, StreamExists
from penstock.store.factory import Durability, open_store

if TYPE_CHECKING:
    import ssl

    from penstock.client._async.http_transport import HttpTransport
    from penstock.client._async.store_transport import StoreTransport
    from penstock.client._async.stream import Stream
    from penstock.client.stream_types import StreamChanges
    from penstock.log.model import StreamInfo

PAGE_MAX = 1_000


class Client:
    """A client, opened by `connect`. Share it between tasks and threads: concurrent calls are batched."""

    def __init__(self, transport: StoreTransport | HttpTransport, worker: str | None = None) -> None:
        self.transport = transport
        self.lease_renewer = LeaseRenewer(transport)
        self._worker = worker
        self.closed = False

    @property
    def worker_name(self) -> str:
        """The name under which `consume` and `worker` lease messages."""
        return self._worker or own_name()

    def queue(self, name: str) -> Queue:
        """Return a queue by name, without checking that it exists."""
        return Queue(self, name)

    async def create_queue(self, name: str, *, exist_ok: bool = False, **options: Unpack[Options]) -> Queue:
        """Create a queue, or return it if it exists with these options; raise QueueExists if it has others.

        With `exist_ok`, an existing queue gets the options given here and keeps its others. `penstock.QueueOptions`
        lists the options, for example `lease_ms=60_000, max_attempts=3`.
        """
        check_queue_name(name)
        try:
            await self.transport.create(name, dict(options))
        except QueueExists:
            if not exist_ok:
                raise
            if options:
                await self.transport.configure(name, dict(options))
        return self.queue(name)

    async def queues(self, *, prefix: str = "", limit: int = 100, after: str | None = None) -> Page[QueueInfo]:
        """Return queues in the order of their names, with options and counters."""
        _check_page(prefix, limit, after)
        return await self.transport.queues(prefix, limit, after)

    def stream(self, name: str) -> Stream:
        """Return a stream by name, without checking that it exists."""
        from penstock.client._async.stream import Stream

        return Stream(self, name)

    async def create_stream(self, name: str, *, exist_ok: bool = False, **options: Unpack[StreamChanges]) -> Stream:
        """Create a stream, or return it if it exists with these options; raise StreamExists if it has others.

        With `exist_ok`, an existing stream gets the options given here and keeps its others. `penstock.StreamOptions`
        lists the options, for example `retention_ms=86_400_000`.
        """
        try:
            await self.transport.streams.create(name, dict(options))
        except StreamExists:
            if not exist_ok:
                raise
            if options:
                await self.transport.streams.configure(name, dict(options))
        return self.stream(name)

    async def streams(self, *, prefix: str = "", limit: int = 100, after: str | None = None) -> Page[StreamInfo]:
        """Return streams in the order of their names, with options and sizes."""
        _check_page(prefix, limit, after)
        return await self.transport.streams.list_all(prefix, limit, after)

    async def close(self) -> None:
        """Close the client. Safe to call again."""
        self.closed = True
        self.lease_renewer.stop()
        await self.transport.close()
        await self.lease_renewer.join()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def connect(
    url: str,
    *,
    token: str | None = None,
    timeout: Seconds = 30,
    connect_timeout: Seconds = 3,
    retry_for: Seconds = 30,
    linger: Seconds = 0,
    connections: int = 64,
    tls: ssl.SSLContext | None = None,
    durability: Durability = "full",
    worker: str | None = None,
) -> Client:
    """Open a queue file, a database or a server; the client is the same.

    `url`: `sqlite:///tasks.db` (relative), `sqlite:////var/lib/tasks.db`, `sqlite:///:memory:`, `http://host:8888`,
    `https://…` or `postgresql://user@host/database` (in the schema `penstock`, or the one given with `?schema=`).
    `timeout` limits one attempt, in addition to the wait of a long poll. `retry_for` limits all attempts of one call,
    which is retried after a lost response and while the server is busy or a queue is full; 0 disables retries. An
    unreachable server is an error after `connect_timeout`; only `consume`, `worker` and calls that settle a message
    keep trying for `retry_for`. `linger` delays requests so that more calls can join them. `durability` applies to
    files and databases, the other options to servers. `worker` names `consume` and `worker` in `penstock workers`; the
    default is host and process id.
    """
    where = parse(url)
    retry_seconds = milliseconds("retry_for", retry_for) / 1000
    linger_seconds = milliseconds("linger", linger, 0, 10_000) / 1000
    timeout_seconds = milliseconds("timeout", timeout, 1) / 1000
    connect_seconds = milliseconds("connect_timeout", connect_timeout, 1) / 1000
    if type(connections) is not int or connections < 1:
        raise InvalidInput(f"connections must be a positive int, got {connections!r}", field="connections")
    if worker is not None and (type(worker) is not str or not 0 < len(worker) <= NAME_LENGTH_MAX):
        raise InvalidInput(f"worker must have 1 to {NAME_LENGTH_MAX} characters", field="worker")
    # Only the modules of the chosen transport are imported, so that a short program starts quickly.
    if not isinstance(where, ServerUrl):
        from penstock.broker.broker import Broker
        from penstock.client._async.store_transport import StoreTransport

        store = open_store(where, durability=durability)
        return Client(
            StoreTransport(Broker(store, clock=store.clock), where, retry_seconds, durability),
            worker,
        )
    from penstock.client._async.http_session import Session
    from penstock.client._async.http_transport import HttpTransport
    from penstock.client.connection_async import Connections

    session = Session(
        Connections(where.address(tls), connections, connect_seconds),
        where=where.shown,
        base_path=where.base_path,
        headers=request_headers(where, token),
        timeout=timeout_seconds,
        connect_timeout=connect_seconds,
        retry_for=retry_seconds,
    )
    return Client(HttpTransport(session, linger_seconds), worker)


def _check_page(prefix: str, limit: int, after: str | None) -> None:
    check_text("prefix", prefix)
    check_range("limit", limit, 1, PAGE_MAX)
    if after is not None:
        check_text("after", after)
