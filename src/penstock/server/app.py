"""The ASGI application: routes and authorizes each request, sends the response, and logs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime

import msgspec

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.errors import PenstockError, TryLater
from penstock.server.api import inbox, operations
from penstock.server.api.analytics import Analytics
from penstock.server.api.journal import JournalApi
from penstock.server.api.queues import handlers
from penstock.server.api.streams.handlers import StreamApi
from penstock.server.api.streams.keys import StreamKeys
from penstock.server.api.tree.handlers import Tree
from penstock.server.api.tree.routes import analytics_routes
from penstock.server.api.workers import Workers
from penstock.server.auth import Gate
from penstock.server.background import BackgroundJobs
from penstock.server.dashboard.dead_letter_groups import DeadLetterGroups
from penstock.server.dashboard.lake import LakeApi
from penstock.server.dashboard.live_events import Dashboard
from penstock.server.dashboard.message_history import MessageHistories
from penstock.server.dashboard.overview import OverviewApi
from penstock.server.dashboard.sparklines import Sparklines
from penstock.server.dashboard.static_files import StaticFiles
from penstock.server.error_responses import to_response
from penstock.server.event_stream import EventBroadcaster
from penstock.server.http.asgi import AsgiExchange, AsgiSocketExchange, Receive, Scope, Send
from penstock.server.http.messages import NoQuery, Request, Response
from penstock.server.http.response_budget import SMALL_BYTES, ResponseBudget
from penstock.server.journal_drainer import JournalDrainer, journal_of
from penstock.server.metrics_history import History, lake_folder
from penstock.server.openapi import describe
from penstock.server.routing import Route, Router
from penstock.server.signatures import Signatures
from penstock.server.stream_metrics import StreamCollector
from penstock.server.stream_service import StreamService
from penstock.server.telemetry import AccessLine, LogLines, Metrics
from penstock.server.tracing import Tracer
from penstock.wire.http_errors import Disconnected, HttpError

ALLOW_HEADERS = b"authorization, content-type, idempotency-key, x-request-id, x-penstock-signature, traceparent"
SAFE_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
CLIENT_CLOSED = 499
REFUSAL_SECONDS = 0.5
PATH_BYTES_MAX = 1_024
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"))
HALF_CLOSED = HttpError(
    400,
    "half_closed",
    "the client closed its side of the connection, so no messages are delivered to it",
    hint="keep it open until the response has arrived",
)
EXCHANGES = {"http": AsgiExchange, "websocket": AsgiSocketExchange}


class App:
    """Runs in any ASGI server. If it is mounted in another application, call `start` and `stop` yourself."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        *,
        streams: StreamService | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.broker = broker
        self.streams = streams
        self.settings = settings
        self.metrics = Metrics(broker)
        self.log = LogLines()
        self.unsent = ResponseBudget()
        self.gate = Gate(broker, settings.auth_token, settings.cors_origins, settings.insecure, settings.read_token)
        self.tracer = tracer
        journal = journal_of(broker, None if streams is None else streams.streams) if settings.journal else None
        self.journal = None if journal is None else JournalApi(journal[0], settings, asyncio.to_thread)
        drainer = None if journal is None else JournalDrainer(broker, journal[1], self.metrics, self.log)
        self.drainer = drainer
        self.broadcaster = (
            None
            if self.journal is None or drainer is None
            else EventBroadcaster(broker, self.journal.reader, self.journal.log_waiters, drainer.drain_now)
        )
        self._background = BackgroundJobs(broker, settings, self.metrics, self.log, streams, drainer)
        self._router = Router(self._routes())
        broker.committer.depth_max = settings.commit_queue_max
        broker.committer.committed = self._committed

    def _routes(self) -> Sequence[Route]:
        ops = operations.Operations(
            self.broker,
            self.settings,
            self.metrics,
            drainer=self.drainer,
            streams=self.streams is not None,
        )
        signatures = Signatures(self.broker)
        history = self._history()
        routes = [
            *inbox.Inbox(self.broker, self.settings, signatures).routes(),
            *handlers.Queues(self.broker, self.settings, self.gate, signatures, self.broadcaster).routes(),
            *Tree(self.broker, self.settings, signatures).routes(),
            *DeadLetterGroups(self.broker).routes(),
            *analytics_routes(Analytics(self.broker, history)),
            *OverviewApi(self.broker, history).routes(),
            *Sparklines(self.broker).routes(),
            *Workers(self.broker).routes(),
            *ops.routes(),
        ]
        if self.journal is not None:
            routes += self.journal.routes()
            reader = self.journal.reader
            routes += Dashboard(self.broker, self.settings, reader, self.journal.log_waiters).routes()
            routes += MessageHistories(self.broker, reader, asyncio.to_thread).routes()
            routes += LakeApi(lake_folder(self.settings, self.broker.store), reader).routes()
        if self.streams is not None:
            keys = StreamKeys(self.broker, self.gate, self.streams)
            routes += [*StreamApi(self.streams, self.settings, keys).routes(), *keys.routes()]
            self.metrics.registry.register(StreamCollector(self.streams))
        ops.document = describe(routes, guarded=self.settings.auth_token is not None)
        return [*routes, *StaticFiles().routes()] if self.settings.dashboard else routes

    @property
    def routes(self) -> Sequence[Route]:
        return self._router.routes

    def _history(self) -> History:
        journal = self.journal
        return History(
            self.broker,
            days_kept=self.settings.metrics_days,
            lake=lake_folder(self.settings, self.broker.store),
            uid=lambda: "" if journal is None else journal.reader.uid,
        )

    def start(self) -> None:
        """Start the background jobs."""
        self._background.start()

    async def stop(self) -> None:
        """End all long polls and background jobs. Broker and streams stay open: their owner closes them."""
        self.stop_waiting()
        await self._background.stop()
        self.log.flush()

    def stop_waiting(self) -> None:
        self.broker.stop_waiting()
        if self.streams is not None:
            self.streams.stop_waiting()
        if self.journal is not None:
            self.journal.log_waiters.close()
        if self.broadcaster is not None:
            self.broadcaster.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] not in EXCHANGES:
            raise RuntimeError(f"unsupported ASGI scope {scope['type']!r}; expected http, websocket or lifespan")
        await self.answer(EXCHANGES[scope["type"]](scope, receive, send).request(self.settings.request_bytes))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def answer(self, request: Request) -> None:
        """Handle a request and send the response. Raise what interrupts a response that has begun."""
        with nullcontext() if self.tracer is None else self.tracer.request(request):
            exchange = request.exchange
            # JSON may escape a byte as six characters, and a message has a few fields beside its payload.
            request.value_max = self.settings.payload_bytes * 6 + (64 << 10)
            try:
                response = await self._respond(request)
                request.status, request.rows = response.status, response.rows
                response.headers += _missing_headers(response) + self.gate.cors_headers(request)
                if request.leased:
                    await self._deliver(request, response)
                else:
                    await self._send(request, response)
            except Disconnected:
                request.status = CLIENT_CLOSED
                if exchange.half_closed:
                    await exchange.send(request, to_response(HALF_CLOSED))
            except asyncio.CancelledError:
                request.status = CLIENT_CLOSED
                raise
            except Exception as error:
                # The response has begun, so it can only be aborted: what was sent must not look complete.
                self._report(request, error)
                raise
            finally:
                if request.leased:
                    self.broker.give_back(request.leased)
                self._account(request)

    async def _deliver(self, request: Request, response: Response) -> None:
        """Send leased messages; release their leases unless the whole response has been handed to the kernel."""
        if self.tracer is not None:
            request.delivered = [found for m in request.leased if (found := (m.headers or {}).get("traceparent"))]
        if request.exchange.peer_closed:
            raise Disconnected
        if len(response.body) > SMALL_BYTES:
            # The payloads are in the response; to release the leases, the tokens are enough.
            request.leased = [msgspec.structs.replace(message, payload=b"") for message in request.leased]
        response = await self._send(request, response)
        if response.status == 200:
            if not await request.exchange.sent():
                raise Disconnected
            request.leased = []

    async def _send(self, request: Request, response: Response) -> Response:
        """Send a response, or an error if slow readers already hold too much. Taken messages are always sent."""
        size = len(response.body) + response.stream_bytes
        if size <= SMALL_BYTES:
            await request.exchange.send(request, response)
            return response
        credential = "" if request.principal is None else request.principal.name
        if request.leased or (request.method == "GET" and request.is_safe):
            try:
                self.unsent.check(credential, size)
            except HttpError as error:
                if response.stream is not None:
                    await response.stream.aclose()
                response = to_response(error)
                response.headers += _missing_headers(response)
                request.status, size = response.status, 0
        with self.unsent.holding(credential, size):
            await request.exchange.send(request, response)
        return response

    async def _respond(self, request: Request) -> Response:
        try:
            if request.method not in METHODS:
                raise HttpError(501, "unknown_method", f"unknown method {request.method[:32]!r}")
            if request.method == "OPTIONS":
                return self._options(request)
            route, request.params = self._router.find(request.method, request.raw_path)
            request.route = route.path
            request.principal = await self.gate.admit(request, route)
            if route.query is None and request.query_string:
                request.query(NoQuery)
            request.is_safe = route.safe
            if route.hands_out or not route.safe:
                self.unsent.check(request.principal.name)
            return await route.handler(request)
        except PenstockError as error:
            if type(error) is TryLater:
                # A limit of the server, not of a queue: a client that retries at once would slow down all others.
                await asyncio.sleep(REFUSAL_SECONDS)
            return to_response(error)
        except Disconnected:
            raise
        except Exception as error:
            self._report(request, error)
            return to_response(
                HttpError(500, "internal_error", "internal server error; the server's log has the details")
            )

    def _options(self, request: Request) -> Response:
        allow = ", ".join(self._router.methods(request.raw_path)).encode()
        headers = [(b"allow", allow)]
        if request.header(b"access-control-request-method") is not None:
            headers += [
                (b"access-control-allow-methods", allow),
                (b"access-control-allow-headers", ALLOW_HEADERS),
                (b"access-control-max-age", b"600"),
            ]
        return Response(204, headers=headers)

    def _account(self, request: Request) -> None:
        seconds = time.perf_counter() - request.started
        # Clients can invent methods, so only known ones become a metric label.
        method = request.method if request.method in METHODS else "other"
        self.metrics.answered(method, request.route, request.status, seconds)
        if self.settings.access_log:
            self.log.access(
                AccessLine(
                    datetime.now(UTC),
                    request.request_id.decode("ascii"),
                    request.exchange.client,
                    method,
                    _path(request),
                    request.route,
                    request.queue,
                    request.status,
                    int(seconds * 1e6) / 1000,
                    request.rows,
                    None if request.principal is None else request.principal.name,
                )
            )

    def _report(self, request: Request, error: Exception) -> None:
        self.log.write(
            request_id=request.request_id.decode("ascii"),
            level="error",
            path=_path(request),
            route=request.route,
            error=repr(error),
            trace=trace(error),
        )

    def _committed(self, commands: int, seconds: float) -> None:
        self.metrics.committed(commands, seconds)
        if self.tracer is not None:
            self.tracer.committed(commands, seconds)


def _path(request: Request) -> str:
    """Return the path as sent, without the query, cut to what a log line may hold."""
    return request.raw_path[:PATH_BYTES_MAX].decode("latin-1")


def _missing_headers(response: Response) -> list[tuple[bytes, bytes]]:
    """Return the headers against sniffing and caching that the response does not set itself."""
    if not response.headers:
        return SAFE_HEADERS
    given = {name for name, _ in response.headers}
    return [header for header in SAFE_HEADERS if header[0] not in given]


def trace(error: BaseException) -> list[str]:
    """Return the stack of an error, innermost last, without values."""
    lines = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        lines.append(f"{code.co_filename.rpartition('penstock/')[2]}:{at.tb_lineno} {code.co_name}")
        at = at.tb_next
    return lines
