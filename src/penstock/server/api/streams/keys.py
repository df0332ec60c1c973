"""API keys of a stream."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.broker.broker import Broker
from penstock.core.api_keys import new_key
from penstock.server.auth import Gate
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route
from penstock.server.stream_service import StreamService
from penstock.wire.http_errors import HttpError
from penstock.wire.queues import Done, KeyList, KeyView, NewKey, new_key_body

KEYS = "/streams/{stream}/keys"
NEW: dict[str, Any] = {"body": NewKey, "body_required": False}


class StreamKeys:
    def __init__(self, broker: Broker, gate: Gate, streams: StreamService) -> None:
        self._broker = broker
        self._gate = gate
        self._service = streams

    def routes(self) -> list[Route]:
        call = partial(Route, tag="streams")
        return [
            call("POST", KEYS, self.add, "Create an API key; its secret is shown once", **NEW, answers={201: KeyView}),
            call("GET", KEYS, self.list_all, "List API keys", answers={200: KeyList}),
            call("DELETE", f"{KEYS}/{{key}}", self.remove, "Revoke a key", answers={200: Done}),
        ]

    async def add(self, request: Request) -> Response:
        stream = await self._require_stream(request)
        body = await request.json(new_key_body, NewKey())
        key_id, secret, digest = new_key()
        key = await self._broker.add_key(stream=stream, id=key_id, name=body.name, hash=digest, rights=body.rights)
        return reply(KeyView.of(key, secret), 201)

    async def list_all(self, request: Request) -> Response:
        stream = await self._require_stream(request)
        keys = [KeyView.of(key) for key in await self._broker.list_keys(stream=stream)]
        return reply(KeyList(keys), rows=len(keys))

    async def remove(self, request: Request) -> Response:
        if not await self._broker.remove_keys(request.params["key"], stream=request.params["stream"]):
            raise HttpError(404, "unknown_key", "there is no such key on this stream")
        self._gate.forget_keys()
        return reply(Done())

    async def revoke_all(self, stream: str) -> None:
        """Revoke all keys when a stream is created or deleted, also those of an earlier stream of that name."""
        if await self._broker.remove_keys(stream=stream):
            self._gate.forget_keys()

    async def _require_stream(self, request: Request) -> str:
        stream = request.params["stream"]
        await self._service.call(lambda: self._service.streams.show(stream))
        return stream
