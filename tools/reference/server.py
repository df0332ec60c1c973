"""Describes the routes and metrics of an in-memory server with every API."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct
from prometheus_client.core import Metric

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.model import PushItem, QueueOptions
from penstock.server.app import App
from penstock.server.serve import open_store_from
from penstock.server.stream_service import StreamService
from penstock.store.factory import open_streams


class Described(Struct):
    document: dict[str, Any]
    rights: dict[tuple[str, str], str]
    metrics: list[Metric]


def describe_server() -> Described:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_describe(Path(folder)))


async def _describe(folder: Path) -> Described:
    settings = Settings(data=str(folder), auth_token="any", worker_id="worker")
    store, path = open_store_from(settings)
    broker = Broker(store, clock=store.clock)
    streams = StreamService(open_streams(path), clock=store.clock)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        stack.push_async_callback(streams.close)
        app = App(broker, settings, streams=streams)
        await broker.push("emails", [PushItem(payload=b"one")], create=QueueOptions())
        document: dict[str, Any] = next(
            route.handler.__self__.document  # type: ignore[attr-defined]
            for route in app.routes
            if route.path == "/openapi.json"
        )
        rights: dict[tuple[str, str], str] = {(route.method, route.path): route.right for route in app.routes}
        metrics = await asyncio.to_thread(lambda: list(app.metrics.registry.collect()))
    return Described(document, rights, metrics)
