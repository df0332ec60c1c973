"""Runs a server: opens the store, listens, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.limits import Limits
from penstock.errors import CannotOpen, InvalidInput
from penstock.log.files import make_folder
from penstock.server.app import App
from penstock.server.http.server import HttpServer
from penstock.server.stream_service import StreamService
from penstock.server.telemetry import LogLines
from penstock.server.tracing import start_tracing
from penstock.store.factory import POSTGRES, open_postgres, open_store, open_streams
from penstock.store.interface import Store

DB_NAME = "penstock.db"
# Open files that are not connections: the database, the log, and a reserve.
FILES_KEPT = 100
FILES_WANTED = 65_536


def open_store_from(settings: Settings) -> tuple[Store, str]:
    """Open the store that the settings name. Return it and its location."""
    url = settings.store
    if url is not None and url.startswith(POSTGRES):
        database = open_postgres(
            url,
            durability=settings.durability,
            busy_ms=settings.busy_ms,
            connections=settings.pool_size,
            journal=settings.journal,
        )
        return database, database.where
    if url is not None and not url.startswith("sqlite:///"):
        raise InvalidInput(
            f"cannot serve from {url.partition('://')[0]}", field="store", hint="sqlite:///path or postgresql://…"
        )
    if url is not None:
        path = Path(url.removeprefix("sqlite:///"))
    elif settings.db is not None:
        path = Path(settings.db)
    else:
        path = Path(settings.data) / DB_NAME
    try:
        make_folder(path.parent)
    except OSError as error:
        raise CannotOpen(f"cannot create the folder {path.parent}: {error.strerror}") from None
    store = open_store(str(path), durability=settings.durability, busy_ms=settings.busy_ms, journal=settings.journal)
    return store, str(path)


def check_exposure(settings: Settings) -> None:
    """Require a token to listen beyond this machine, unless the settings allow insecure access."""
    if settings.read_token and not settings.auth_token:
        raise InvalidInput(
            "READ_TOKEN has no effect without AUTH_TOKEN", field="read_token", hint="set AUTH_TOKEN, too"
        )
    if settings.auth_token or settings.insecure:
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(settings.host).is_loopback:
            return
    if settings.host == "localhost":
        return
    raise InvalidInput(
        f"listening on {settings.host} without a token would let anyone in",
        field="auth_token",
        hint="set AUTH_TOKEN, or pass --insecure",
    )


def run(settings: Settings) -> None:
    check_exposure(settings)
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InvalidInput(
            "TLS needs a certificate and a key", field="tls_key", hint="set both --tls-cert and --tls-key"
        )
    tls_context(settings)
    with contextlib.closing(listen(settings)) as listener:
        store, path = open_store_from(settings)
        # Objects created so far live as long as the process, and requests leave few reference cycles behind.
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        runner = asyncio.Runner(loop_factory=_loop_factory())
        with runner:
            runner.run(serve(settings, store, path, listener))


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput(f"cannot use the certificate: {error}", field="tls_cert") from None
    return context


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise CannotOpen(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}", hint="choose another --port"
        ) from None
    listener.set_inheritable(True)
    return listener


async def serve(
    settings: Settings,
    store: Store,
    path: str,
    listener: socket.socket,
    *,
    stop: asyncio.Event | None = None,
    ready: Callable[[App], None] | None = None,
) -> None:
    """Serve until a signal arrives or `stop` is set."""
    app = build_app(settings, store, path)
    connections = HttpServer(app, connections_max=min(settings.connections_max, _files_max() - FILES_KEPT))
    stop, force_stop = stop or asyncio.Event(), asyncio.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _on_signal, stop, force_stop)
    app.start()
    try:
        await connections.start(listener, tls_context(settings))
        if ready is None:
            announce(settings, path, listener, app.log, store.durability_warnings)
        else:
            ready(app)
        await stop.wait()
        if ready is None:
            log_event(app.log, "penstock is shutting down and finishing open requests", event="stopping")
        app.stop_waiting()
        await connections.stop(settings.grace_ms / 1000, force_stop)
    finally:
        await close_app(app)
        if ready is None:
            log_event(app.log, "penstock has stopped", event="stopped")


def build_app(settings: Settings, store: Store, path: str) -> App:
    """Return the application on an open store, not yet started."""
    limits = Limits(payload_bytes=settings.payload_bytes, batch_messages=settings.batch_max)
    broker = Broker(store, clock=store.clock, limits=limits)
    where = settings.store if settings.store is not None and settings.store.startswith(POSTGRES) else path
    streams = StreamService(
        open_streams(where, durability=settings.durability, busy_ms=settings.busy_ms), clock=store.clock
    )
    return App(broker, settings, streams=streams, tracer=start_tracing() if settings.otel else None)


async def close_app(app: App) -> None:
    """Stop the application and close all that `build_app` opened."""
    await app.stop()
    if app.streams is not None:
        await app.streams.close()
    await app.broker.close()
    if app.tracer is not None:
        app.tracer.close()


def _on_signal(stop: asyncio.Event, force_stop: asyncio.Event) -> None:
    """Stop gracefully on the first signal; on the second, without waiting for open requests."""
    if stop.is_set():
        force_stop.set()
    stop.set()


def _files_max() -> int:
    """Raise the limit of open files as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = FILES_WANTED
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    return max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def announce(settings: Settings, path: str, listener: socket.socket, log: LogLines, warnings: Sequence[str]) -> None:
    """Log the URL, the data's location and its durability."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"{'https' if settings.tls_cert else 'http'}://{shown}:{port}"
    if settings.durability == "relaxed":
        durability = "RELAXED: a power failure may lose the latest writes"
    elif warnings:
        durability = "NOT SAFE: " + "; ".join(warnings)
    else:
        durability = "full: every write is fsynced before it is acknowledged"
    access = "with authentication" if settings.auth_token else "without authentication"
    log_event(
        log,
        f"penstock listens on {url} {access}",
        event="started",
        shown={
            "data": path,
            "durability": durability,
            "dashboard": f"{url}/" if settings.dashboard else "off",
            "docs": f"{url}/docs",
        },
        url=url,
        version=__version__,
        pid=os.getpid(),
    )


def log_event(log: LogLines, message: str, *, event: str, shown: dict[str, str] | None = None, **fields: Any) -> None:
    """Write plain text if stderr is a terminal, otherwise a JSON line like the rest of the log."""
    shown = shown or {}
    if sys.stderr.isatty():
        sys.stderr.write(f"{message}\n" + "".join(f"  {name:<10}  {value}\n" for name, value in shown.items()))
        sys.stderr.flush()
    else:
        log.write(level="info", event=event, message=message, **shown, **fields)
        log.flush()
