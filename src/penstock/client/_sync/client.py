"""Opening a client, over a file or a server.

Made by tools/unasync.py from the asynchronous twin: change that.
"""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Unpack

from penstock.broker._sync.broker import Broker
from penstock.client._sync.http_session import Session
from penstock.client._sync.http_transport import HttpTransport
from penstock.client._sync.lease_renewer import LeaseRenewer
from penstock.client._sync.queue import Queue
from penstock.client._sync.store_streams import StoreStreams
from penstock.client._sync.store_transport import StoreTransport
from penstock.client._sync.stream import Stream
from penstock.client.connection_threads import Connections
from penstock.client.stream_types import StreamChanges
from penstock.client.types import Options, Page, Seconds, milliseconds
from penstock.client.urls import ServerUrl, parse, request_headers
from penstock.core.ids import NAME_LENGTH_MAX, check_queue_name, own_name
from penstock.core.limits import check_range, check_text
from penstock.core.model import QueueInfo
from penstock.errors import InvalidInput, QueueExists, StreamExists
from penstock.log.model import StreamInfo
from penstock.store.factory import Durability, open_store

PAGE_MAX = 1_000


class Client:
    """Made by `connect`. Safe to share, and best shared: calls at the same time travel together."""

    def __init__(self, transport: StoreTransport | HttpTransport, worker: str | None = None) -> None:
        self.transport = transport
        self.keeper = LeaseRenewer(transport)
        self._worker = worker
        self.closed = False

    @property
    def worker_name(self) -> str:
        """Under which `consume` and `worker` of its queues lease."""
        return self._worker or own_name()

    def queue(self, name: str) -> Queue:
        """A queue by its name; whether it exists shows when it is used."""
        return Queue(self, name)

    def create_queue(self, name: str, *, exist_ok: bool = False, **options: Unpack[Options]) -> Queue:
        """Make a queue. One that exists with just these options is fine; any other is QueueExists.

        With `exist_ok`, a queue that exists gets the options named here, and keeps its others. Options are those of
        `penstock.QueueOptions`, for example `lease_ms=60_000, max_attempts=3`.
        """
        check_queue_name(name)
        try:
            self.transport.create(name, dict(options))
        except QueueExists:
            if not exist_ok:
                raise
            if options:
                self.transport.configure(name, dict(options))
        return self.queue(name)

    def queues(self, *, prefix: str = "", limit: int = 100, after: str | None = None) -> Page[QueueInfo]:
        """Queues by name, with options and counters."""
        _check_page(prefix, limit, after)
        return self.transport.queues(prefix, limit, after)

    def stream(self, name: str) -> Stream:
        """A stream by its name; whether it exists shows when it is used."""
        return Stream(self, name)

    def create_stream(self, name: str, *, exist_ok: bool = False, **options: Unpack[StreamChanges]) -> Stream:
        """Make a stream. One that exists with just these options is fine; any other is StreamExists.

        With `exist_ok`, a stream that exists gets the options named here, and keeps its others. Options are those of
        `penstock.StreamOptions`, for example `retention_ms=86_400_000`.
        """
        try:
            self.transport.streams.create(name, dict(options))
        except StreamExists:
            if not exist_ok:
                raise
            if options:
                self.transport.streams.configure(name, dict(options))
        return self.stream(name)

    def streams(self, *, prefix: str = "", limit: int = 100, after: str | None = None) -> Page[StreamInfo]:
        """Streams by name, with options and sizes."""
        _check_page(prefix, limit, after)
        return self.transport.streams.list_all(prefix, limit, after)

    def close(self) -> None:
        """Safe to call again."""
        self.closed = True
        self.keeper.stop()
        self.transport.close()
        self.keeper.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    `https://…` or `postgresql://user@host/database` (in its schema `penstock`, or the one that `?schema=` names).
    `timeout` is for one attempt (a poll's waiting comes on top), `retry_for` for all attempts of one call: after a lost
    answer, when the server is busy, or when a queue is full; 0 never tries again. A server that cannot be reached is an
    error after `connect_timeout`; only `consume`, `worker`, and what settles a message keep trying for `retry_for`.
    `linger` lets a request wait so that more calls may join it. `durability` is for files and databases, the others are
    for servers. `worker` is the name of `consume` and `worker` in `penstock workers`; by default host and process.
    """
    where = parse(url)
    retry_seconds = milliseconds("retry_for", retry_for) / 1000
    linger_seconds = milliseconds("linger", linger, 0, 10_000) / 1000
    timeout_seconds = milliseconds("timeout", timeout, 1) / 1000
    connect_seconds = milliseconds("connect_timeout", connect_timeout, 1) / 1000
    if type(connections) is not int or connections < 1:
        raise InvalidInput("connections is an int from 1", field="connections")
    if worker is not None and (type(worker) is not str or not 0 < len(worker) <= NAME_LENGTH_MAX):
        raise InvalidInput(f"worker is a name of 1 to {NAME_LENGTH_MAX} letters", field="worker")
    if not isinstance(where, ServerUrl):
        store = open_store(where, durability=durability)
        return Client(
            StoreTransport(
                Broker(store, clock=store.clock), StoreStreams(where, retry_seconds, durability), retry_seconds
            ),
            worker,
        )
    asker = Session(
        Connections(where.address(tls), connections, connect_seconds),
        where=where.shown,
        base_path=where.base_path,
        headers=request_headers(where, token),
        timeout=timeout_seconds,
        connect_timeout=connect_seconds,
        retry_for=retry_seconds,
    )
    return Client(HttpTransport(asker, linger_seconds), worker)


def _check_page(prefix: str, limit: int, after: str | None) -> None:
    check_text("prefix", prefix)
    check_range("limit", limit, 1, PAGE_MAX)
    if after is not None:
        check_text("after", after)
