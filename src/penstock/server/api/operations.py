"""Operations API: liveness, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.server.auth import ANYONE, Principal
from penstock.server.http.messages import Request, Response, reply
from penstock.server.journal_drainer import JournalDrainer
from penstock.server.openapi_page import docs_page
from penstock.server.routing import Route
from penstock.server.telemetry import Metrics, disk_free_bytes
from penstock.store.sqlite import SqliteStore

DISK_BYTES_LOW = 64 << 20
OBSTACLE_LOOKS = 10
OBSTACLE_PAUSE_SECONDS = 0.05


class Liveness(Struct):
    status: Literal["ok"]


class Ready(Struct):
    ready: bool
    checks: dict[str, str]


class ServerView(Struct, kw_only=True):
    """Version and features of this server, and the rights of the caller's credential."""

    version: str
    store: Literal["sqlite", "postgresql"]
    durability: str
    role: Literal["admin", "reader", "key"]
    """Role of the caller's credential: admin, read-only, or a key of one queue or stream."""
    queue: str | None
    """The queue of a key."""
    stream: str | None
    """The stream of a key."""
    guarded: bool
    """True if the server requires a token."""
    journal: bool
    """True if the server keeps a journal: live events, message histories, and input for the pipeline."""
    streams: bool
    now: int


class Operations:
    def __init__(
        self, broker: Broker, settings: Settings, metrics: Metrics, *, drainer: JournalDrainer | None, streams: bool
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._metrics = metrics
        self._drainer = drainer
        self._streams = streams
        self.document: dict[str, Any] = {}

    def routes(self) -> list[Route]:
        call = partial(Route, tag="operations")
        return [
            call("GET", "/healthz", self.live, "Check that the process is alive", "public", answers={200: Liveness}),
            call(
                "GET",
                "/readyz",
                self.ready,
                "Check that the store responds, accepts writes and has free space",
                "public",
                answers={200: Ready, 503: Ready},
            ),
            call(
                "GET",
                "/server",
                self.server,
                "Show the server's version, features and your rights",
                "authenticated",
                answers={200: ServerView},
            ),
            call("GET", "/metrics", self.metrics, "Prometheus metrics", answers={200: "text/plain"}),
            call("GET", "/openapi.json", self.openapi, "This document", "public", answers={200: dict[str, Any]}),
            call("GET", "/docs", self.docs, "This document as HTML", "public", answers={200: "text/html"}),
        ]

    async def server(self, request: Request) -> Response:
        principal: Principal = request.principal
        return reply(
            ServerView(
                version=__version__,
                store="sqlite" if isinstance(self._broker.store, SqliteStore) else "postgresql",
                durability=self._settings.durability,
                role="admin" if principal.is_admin else "reader" if principal.reads_only else "key",
                queue=principal.queue,
                stream=principal.stream,
                guarded=self._settings.auth_token is not None,
                journal=self._drainer is not None,
                streams=self._streams,
                now=self._broker.store.clock(),
            )
        )

    async def live(self, request: Request) -> Response:
        return reply(Liveness("ok"))

    async def ready(self, request: Request) -> Response:
        checks = {
            "store": await self._store_check(),
            "writes": await self._write_check(),
            "disk": self._disk_check(),
            "wal": self._wal_check(),
        }
        ready = all(verdict == "ok" for verdict in checks.values())
        # A journal that stands still does not keep the queues from working, but an operator should know.
        checks["journal"] = "ok" if self._drainer is None else self._drainer.error or "ok"
        if request.principal is ANYONE:
            # Hide the causes, which name hosts, databases and sizes, from unauthenticated callers.
            checks = {name: verdict if verdict == "ok" else "failed" for name, verdict in checks.items()}
        # The same is true of records that were cut off a log.
        checks["logs"] = await self._log_check()
        response = reply(Ready(ready, checks), 200 if ready else 503)
        if not ready:
            response.headers.append((b"retry-after", b"1"))
        return response

    async def _store_check(self) -> str:
        try:
            await self._broker.list_queues(limit=1)
        except PenstockError as error:
            return str(error)
        return "ok"

    async def _write_check(self) -> str:
        """Check a few times, because a lock that others hold briefly is no obstacle."""
        store = self._broker.store
        try:
            before = await self._broker.read(store.commits)
            for _ in range(OBSTACLE_LOOKS):
                obstacle = await self._broker.read(store.write_obstacle)
                if obstacle is None or await self._broker.read(store.commits) != before:
                    return "ok"
                await asyncio.sleep(OBSTACLE_PAUSE_SECONDS)
        except PenstockError as error:
            return str(error)
        return f"the store does not accept writes: {obstacle}"

    def _disk_check(self) -> str:
        free = disk_free_bytes(self._broker.store)
        return "ok" if free is None or free > DISK_BYTES_LOW else f"only {free} bytes free"

    async def _log_check(self) -> str:
        count = await self._broker.read(self._metrics.cuts.count)
        return "ok" if not count else f"{count} files of cut records; `penstock doctor` names them"

    def _wal_check(self) -> str:
        pressure = self._broker.pressure
        return "ok" if pressure is None else pressure

    async def metrics(self, request: Request) -> Response:
        text = await self._broker.read(self._metrics.text)
        return Response(200, text, content_type=b"text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        return reply(self.document)

    async def docs(self, request: Request) -> Response:
        headers = [(b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")]
        page = docs_page(self.document)
        return Response(200, page.encode(), content_type=b"text/html; charset=utf-8", headers=headers)
