"""The ASGI application: finds the route, admits the caller, answers, and says so."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import aclosing

from penstock.broker import Broker
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.server.auth import Gate
from penstock.server.background import Background
from penstock.server.faces import inbox, ops, queues
from penstock.server.http import Disconnected, HttpError, Receive, Request, Response, Scope, Send
from penstock.server.openapi import describe
from penstock.server.problems import to_response
from penstock.server.routing import Route, Router
from penstock.server.signatures import Signatures
from penstock.server.telemetry import LogLines, Metrics
from penstock.server.tracing import Tracer

REQUEST_ID_LENGTH_MAX = 128
ALLOW_HEADERS = b"authorization, content-type, idempotency-key, x-request-id, x-penstock-signature, traceparent"
CLIENT_CLOSED = 499


class App:
    """Runs in any ASGI server. Where it is mounted, whose lifespan does not reach it, call `start` and `stop`."""

    def __init__(self, broker: Broker, settings: Settings, *, tracer: Tracer | None = None) -> None:
        self.broker = broker
        self.settings = settings
        self.metrics = Metrics(broker)
        self.log = LogLines()
        self.gate = Gate(broker, settings.auth_token, settings.cors_origins, settings.insecure)
        self.tracer = tracer
        self._background = Background(broker, settings, self.metrics, self.log)
        self._router = Router(self._routes())
        broker.committer.depth_max = settings.commit_queue_max
        broker.committer.committed = self._committed

    def _routes(self) -> Sequence[Route]:
        operations = ops.Ops(self.broker, self.settings, self.metrics)
        signatures = Signatures(self.broker)
        routes = [
            *inbox.Inbox(self.broker, self.settings, signatures).routes(),
            *queues.Queues(self.broker, self.settings, self.gate, signatures).routes(),
            *operations.routes(),
        ]
        operations.document = describe(routes, guarded=self.settings.auth_token is not None)
        return routes

    def start(self) -> None:
        """Sweep, watch and sing."""
        self._background.start()

    async def stop(self) -> None:
        """End every wait, then what `start` began. The broker stays open: its owner closes it."""
        self.broker.stop_waiting()
        await self._background.stop()
        self.log.flush()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"Penstock speaks HTTP, not {scope['type']}")
        request = Request(scope, receive, {}, self.settings.request_bytes)
        exchange = Exchange(request, send, self.gate)
        if self.tracer is None:
            await self._answer(exchange)
        else:
            with self.tracer.request(request, exchange):
                await self._answer(exchange)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        try:
            response = await self._respond(exchange)
            exchange.status, exchange.rows = response.status, response.rows
            if self.tracer is not None:
                exchange.delivered = [found for m in request.leased if (found := (m.headers or {}).get("traceparent"))]
            if request.leased and request.hung_up:
                raise Disconnected
            await exchange.send(response)
            if request.leased and response.status == 200:
                if not await request.sent():
                    raise Disconnected
                request.leased = []
        except Disconnected:
            exchange.status = CLIENT_CLOSED
        except asyncio.CancelledError:
            exchange.status = CLIENT_CLOSED
            raise
        except Exception as error:
            # The answer has begun, so that it can only be broken off: what was sent must not look whole.
            self._report(exchange, error)
            raise
        finally:
            if request.leased:
                self.broker.give_back(request.leased)
            self._account(exchange)

    async def _respond(self, exchange: Exchange) -> Response:
        request = exchange.request
        try:
            raw_path = _raw_path(request.scope)
            if request.method == "OPTIONS":
                return self._options(request, raw_path)
            route, request.params = self._router.find(request.method, raw_path)
            exchange.route = route.path
            request.principal = await self.gate.admit(request, route.right)
            return await route.handler(request)
        except PenstockError as error:
            return to_response(error)
        except Disconnected:
            raise
        except Exception as error:
            self._report(exchange, error)
            return to_response(HttpError(500, "internal_error", "something went wrong here; it has been logged"))

    def _options(self, request: Request, raw_path: bytes) -> Response:
        allow = ", ".join(self._router.methods(raw_path)).encode()
        headers = [(b"allow", allow)]
        if request.header(b"access-control-request-method") is not None:
            headers += [
                (b"access-control-allow-methods", allow),
                (b"access-control-allow-headers", ALLOW_HEADERS),
                (b"access-control-max-age", b"600"),
            ]
        return Response(204, headers=headers)

    def _account(self, exchange: Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        request = exchange.request
        self.metrics.answered(request.method, exchange.route, exchange.status, seconds)
        if self.settings.access_log:
            self.log.write(
                time=time.time(),
                request_id=exchange.request_id,
                method=request.method,
                route=exchange.route,
                status=exchange.status,
                ms=round(seconds * 1000, 3),
                rows=exchange.rows,
                who=None if request.principal is None else request.principal.name,
            )

    def _report(self, exchange: Exchange, error: Exception) -> None:
        self.log.write(
            time=time.time(),
            request_id=exchange.request_id,
            level="error",
            route=exchange.route,
            error=repr(error),
            trace=trace(error),
        )

    def _committed(self, commands: int, seconds: float) -> None:
        self.metrics.committed(commands, seconds)
        if self.tracer is not None:
            self.tracer.committed(commands, seconds)


class Exchange:
    """One request and its answer: what is sent, with the headers that all answers have, and what is said of it."""

    __slots__ = ("_gate", "_request_id", "_send", "delivered", "request", "route", "rows", "started", "status")

    def __init__(self, request: Request, send: Send, gate: Gate) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.route = "unmatched"
        self.status = 500
        self.rows: int | None = None
        self.delivered: list[str] = []
        """Traces of the producers whose messages it hands over."""
        self._send = send
        self._gate = gate
        self._request_id: bytes | None = None

    @property
    def request_id(self) -> str:
        if self._request_id is None:
            given = self.request.header(b"x-request-id")
            usable = given and len(given) <= REQUEST_ID_LENGTH_MAX and all(32 < byte < 127 for byte in given)
            self._request_id = given if given and usable else b"%016x" % random.getrandbits(64)
        return self._request_id.decode("ascii")

    async def send(self, response: Response) -> None:
        headers = [(b"x-request-id", self.request_id.encode()), *response.headers]
        headers += self._gate.cors_headers(self.request)
        if response.status != 204:
            headers.append((b"content-type", response.content_type))
            if response.stream is None:
                headers.append((b"content-length", str(len(response.body)).encode()))
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        if response.stream is None or self.request.method == "HEAD":
            body = b"" if self.request.method == "HEAD" else response.body
            await self._send({"type": "http.response.body", "body": body})
            return
        async with aclosing(response.stream) as chunks:
            async for chunk in chunks:
                if self.request.gone:
                    raise Disconnected
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


def _raw_path(scope: Scope) -> bytes:
    """As it was sent, without the prefix under which the application is mounted."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    prefix: bytes = scope.get("root_path", "").rstrip("/").encode()
    if prefix and raw_path.startswith(prefix) and raw_path[len(prefix) : len(prefix) + 1] in (b"/", b""):
        return raw_path[len(prefix) :]
    return raw_path


def trace(error: BaseException) -> list[str]:
    """Where it happened, innermost last, without the values."""
    lines = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        lines.append(f"{code.co_filename.rpartition('penstock/')[2]}:{at.tb_lineno} {code.co_name}")
        at = at.tb_next
    return lines
