"""Penstock inside your own ASGI application, and workers beside it.

queues = penstock.asgi.app("sqlite:///tasks.db", auth_token="…")
api = FastAPI(lifespan=penstock.asgi.lifespan(queues, send_email))
api.mount("/penstock", queues)

`queues` is also an ASGI application by itself: `uvicorn module:queues`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.config import Settings, check_settings
from penstock.core.validation import to_invalid_input
from penstock.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from penstock.client._async.worker import Worker
    from penstock.client._sync.worker import Worker as SyncWorker
    from penstock.server.app import App
    from penstock.server.http.asgi import Receive, Scope, Send

__all__ = ["Application", "app", "lifespan"]

log = logging.getLogger("penstock.asgi")


def app(store: str, **settings: Any) -> Application:
    """Return Penstock as an ASGI application on `sqlite:///path` or `postgresql://…`.

    `settings` are those of the server, for example `auth_token="…"`. Without a token, `insecure=True` is required: then
    the application around it must check who may use it.
    """
    values = {"access_log": False, **settings, "store": store}
    try:
        checked = check_settings(msgspec.convert(values, Settings))
    except msgspec.ValidationError as error:
        raise to_invalid_input(error, "setting") from None
    if not checked.auth_token and not checked.insecure:
        raise InvalidInput(
            "auth_token is missing, so everyone could use the queues",
            field="auth_token",
            hint="give auth_token=…, or insecure=True if your application authenticates requests",
        )
    return Application(checked)


class Application:
    """An ASGI application that opens its store when it starts and closes it when it stops.

    It starts with the lifespan of its server, with `lifespan` of the application that it is mounted in, or else with
    its first request.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._starting = asyncio.Lock()
        self._app: App | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the application, and stop it at the end of the block."""
        await self._start()
        try:
            yield
        finally:
            await self._stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._follow(receive, send)
            return
        await (self._app or await self._start())(scope, receive, send)

    async def _follow(self, receive: Receive, send: Send) -> None:
        """Start and stop with the server's lifespan events."""
        await receive()
        try:
            await self._start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> App:
        async with self._starting:
            if self._app is None:
                try:
                    from penstock.server.serve import build_app, open_store_from
                except ImportError:
                    raise MissingExtra("server") from None
                found = build_app(self._settings, *open_store_from(self._settings))
                found.start()
                self._app = found
            return self._app

    async def _stop(self) -> None:
        from penstock.server.serve import close_app

        async with self._starting:
            stopped, self._app = self._app, None
            if stopped is not None:
                await close_app(stopped)


def lifespan(*parts: Application | Worker | SyncWorker) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan for FastAPI or Starlette that runs Penstock applications and workers beside them.

    Workers of `penstock.aio` run in the event loop, those of `penstock` in threads. At shutdown they lease no more and
    finish the messages they are working on.
    """
    for part in parts:
        if not isinstance(part, Application) and not hasattr(part, "stop"):
            raise InvalidInput(
                f"lifespan(): expected applications and workers, got {type(part).__name__}",
                field="parts",
                hint="decorate the function with @queue.worker()",
            )

    @asynccontextmanager
    async def run(_application: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for part in parts:
                beside = part.running() if isinstance(part, Application) else _working(part)
                await stack.enter_async_context(beside)
            yield

    return run


@asynccontextmanager
async def _working(worker: Worker | SyncWorker) -> AsyncIterator[None]:
    running = asyncio.ensure_future(_run(worker))
    try:
        yield
    finally:
        # A worker that has run before ignores a stop() until its next run has begun, in its own thread or task.
        while not running.done():
            worker.stop()
            await asyncio.wait([running], timeout=1)
        await running


async def _in_own_thread(run: Callable[[], None]) -> None:
    """Run in a dedicated thread: a worker would occupy one of the loop's few shared threads."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-worker")
    try:
        await asyncio.get_running_loop().run_in_executor(executor, run)
    finally:
        executor.shutdown(wait=False)


async def _run(worker: Any) -> None:
    """Run a worker until it is stopped. If it fails, log that; the application goes on."""
    try:
        if inspect.iscoroutinefunction(worker.run):
            await worker.run()
        else:
            await _in_own_thread(worker.run)
    except Exception:
        log.exception("the worker of queue %r failed and handles no more messages", worker.queue.name)
