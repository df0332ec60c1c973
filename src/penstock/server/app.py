"""The ASGI application: finds the route, admits the caller, answers, and says so."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from penstock.broker import Broker
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.server.auth import Gate
from penstock.server.faces import inbox, ops, queues
from penstock.server.http import Disconnected, HttpError, Receive, Request, Response, Scope, Send
from penstock.server.openapi import describe
from penstock.server.problems import to_response
from penstock.server.routing import Route, Router
from penstock.server.telemetry import LogLines, Metrics

REQUEST_ID_LENGTH_MAX = 128
ALLOW_HEADERS = b"authorization, content-type, idempotency-key, x-request-id, x-penstock-signature, traceparent"


class App:
    """Mount it in any ASGI server, or under a path of your own application."""

    def __init__(self, broker: Broker, settings: Settings, *, metrics: Metrics | None = None) -> None:
        self.broker = broker
        self.settings = settings
        self.metrics = metrics or Metrics(broker.store)
        self.log = LogLines() if settings.access_log else None
        self.gate = Gate(broker, settings.auth_token, settings.cors_origins, settings.insecure)
        routes = self._routes()
        self._router = Router(routes)

    def _routes(self) -> Sequence[Route]:
        operations = ops.Ops(self.broker, self.settings, self.metrics)
        routes = [
            *inbox.Inbox(self.broker, self.settings).routes(),
            *queues.Queues(self.broker, self.settings, self.gate, self.metrics).routes(),
            *operations.routes(),
        ]
        operations.document = describe(routes)
        return routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"Penstock speaks HTTP, not {scope['type']}")
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        method = scope["method"]
        request = Request(scope, receive, {}, self.settings.request_bytes)
        route_path = "unmatched"
        sender = Sender(send, request, self.gate)
        try:
            route, params = self._find(scope)
            route_path = route.path
            request.params = params
            if method == "OPTIONS":
                response = _preflight(route)
            else:
                request.principal = await self.gate.admit(request, route.right)
                response = await route.handler(request)
        except PenstockError as error:
            response = to_response(error)
        except Disconnected:
            self._account(sender, method, route_path, 499, started, None)
            return
        except Exception as error:
            self._report(sender, error)
            response = to_response(HttpError(500, "internal_error", "something went wrong here; it has been logged"))
        await sender.send(response)
        self._account(sender, method, route_path, response.status, started, response.rows)

    def _find(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        root: str = scope.get("root_path", "")
        if root:
            raw_path = raw_path.removeprefix(root.encode())
        method = scope["method"]
        if method == "HEAD":
            method = "GET"
        elif method == "OPTIONS":
            method = next(
                (v.decode("latin-1") for k, v in scope["headers"] if k == b"access-control-request-method"), "GET"
            )
        return self._router.find(method, raw_path)

    def _account(self, sender: Sender, method: str, route: str, status: int, started: float, rows: int | None) -> None:
        seconds = time.perf_counter() - started
        self.metrics.answered(method, route, status, seconds)
        if self.log is not None:
            self.log.write(
                time=time.time(),
                request_id=sender.request_id,
                method=method,
                route=route,
                status=status,
                ms=round(seconds * 1000, 3),
                rows=rows,
            )

    def _report(self, sender: Sender, error: Exception) -> None:
        log = self.log or LogLines()
        log.write(time=time.time(), request_id=sender.request_id, level="error", error=repr(error), trace=trace(error))


class Sender:
    """Writes one response, with the headers that all responses have."""

    __slots__ = ("_gate", "_request", "_request_id", "_send")

    def __init__(self, send: Send, request: Request, gate: Gate) -> None:
        self._send = send
        self._request = request
        self._gate = gate
        self._request_id: bytes | None = None

    @property
    def request_id(self) -> str:
        if self._request_id is None:
            given = self._request.header(b"x-request-id")
            usable = given and len(given) <= REQUEST_ID_LENGTH_MAX and all(32 < byte < 127 for byte in given)
            self._request_id = given if given and usable else secrets.token_hex(8).encode()
        return self._request_id.decode("ascii")

    async def send(self, response: Response) -> None:
        headers = [(b"x-request-id", self.request_id.encode()), *response.headers]
        headers += self._gate.cors_headers(self._request)
        if response.status != 204:
            headers.append((b"content-type", response.content_type))
        if response.stream is None:
            headers.append((b"content-length", str(len(response.body)).encode()))
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        if response.stream is None or self._request.method == "HEAD":
            body = b"" if self._request.method == "HEAD" else response.body
            await self._send({"type": "http.response.body", "body": body})
            return
        async for chunk in response.stream:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


def _preflight(route: Route) -> Response:
    headers = [
        (b"access-control-allow-methods", route.method.encode()),
        (b"access-control-allow-headers", ALLOW_HEADERS),
        (b"access-control-max-age", b"600"),
    ]
    return Response(204, headers=headers)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        if event["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif event["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return


def trace(error: BaseException) -> list[str]:
    """Where it happened, innermost last, without the values."""
    lines = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        lines.append(f"{code.co_filename.rpartition('penstock/')[2]}:{at.tb_lineno} {code.co_name}")
        at = at.tb_next
    return lines
