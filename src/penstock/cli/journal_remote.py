"""A server's journal, over HTTP."""

from __future__ import annotations

from typing import Any

from penstock.cli.output import Data
from penstock.cli.web import Web


class RemoteJournal:
    def __init__(self, url: str, token: str | None) -> None:
        self._web = Web(url, token)

    def show(self) -> Data:
        return self._get("/journal")

    def events(self, start: int | None, *, limit: int, wait_ms: int, queue: str | None, kind: str | None) -> Data:
        query = {"from": start, "limit": limit, "wait_ms": wait_ms, "queue": queue, "kind": kind}
        return self._get("/journal/events", wait=wait_ms / 1000, **query)

    def _get(self, path: str, *, wait: float = 0.0, **query: Any) -> Data:
        found: Data = self._web.request("GET", path, wait=wait, **query)
        return found

    def close(self) -> None:
        self._web.close()
