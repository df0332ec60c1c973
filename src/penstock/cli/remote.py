"""The backend over HTTP."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.cli.backend import Data, KeyOwner, Outgoing, Verb, without_lease
from penstock.cli.web import RequestRefused, ServerAway, Web

PAGE = 1_000
PART_BYTES = 1 << 20
EARLY_SECONDS = 0.1


class RemoteBackend:
    def __init__(self, url: str, token: str | None) -> None:
        self._web = Web(url, token)

    # Queues

    def list_queues(self, prefix: str) -> Iterator[Data]:
        after = None
        while True:
            page = self._web.request("GET", "/queues", prefix=prefix or None, after=after, limit=PAGE)
            yield from page["queues"]
            after = page["next"]
            if after is None:
                return

    def create_queue(self, name: str, options: Mapping[str, Any]) -> tuple[Data, bool]:
        response = self._web.open("POST", "/queues", msgspec.json.encode({"name": name, **options}), wait=0)
        created = response.status == 201
        return self._web.decode(response), created

    def change_queue(self, name: str, options: Mapping[str, Any]) -> Data:
        return self._data("PATCH", _queue(name), dict(options))

    def show_queue(self, name: str) -> Data:
        return self._data("GET", _queue(name))

    def drop_queue(self, name: str, *, force: bool) -> Data:
        return self._data("DELETE", _queue(name), force=force or None)

    def pause_queue(self, name: str, *, paused: bool) -> Data:
        return self._data("POST", f"{_queue(name)}/{'pause' if paused else 'resume'}")

    def compact(self, name: str) -> None:
        self._web.request("POST", f"{_queue(name)}/compact", wait=3600)

    def stats(self, name: str) -> Data:
        return self._data("GET", f"{_queue(name)}/stats")

    def purge(self, name: str, *, dead: bool, dry_run: bool) -> Data:
        path = f"{_queue(name)}/{'dlq/purge' if dead else 'purge'}"
        return self._data("POST", path, wait=3600, dry_run=dry_run or None)

    def peek(self, name: str, *, state: str, limit: int) -> list[Data]:
        found: list[Data] = []
        after = None
        while len(found) < limit:
            size = min(limit - len(found), PAGE)
            page = self._web.request("GET", f"{_queue(name)}/peek", state=state, limit=size, after=after)
            found += page["messages"]
            after = page["next"]
            if after is None or not page["messages"]:
                break
        return found

    def requeue(self, name: str, *, where: Mapping[str, Any], rate_per_s: float | None, dry_run: bool) -> Data:
        body = {"where": dict(where), "rate_per_s": rate_per_s, "dry_run": dry_run}
        return self._data("POST", f"{_queue(name)}/dlq/requeue", body, wait=86_400)

    # Messages

    def push(self, queue: str, messages: Sequence[Outgoing]) -> Data:
        # Only messages with idempotency keys can be sent again safely.
        try:
            return self._data("POST", f"{_queue(queue)}/messages", {"messages": messages})
        except ServerAway:
            if not all(message.idempotency_key for message in messages):
                raise
            return self._data("POST", f"{_queue(queue)}/messages", {"messages": messages})

    def poll(
        self, queue: str, *, batch: int, wait_ms: int, visibility_ms: int | None, worker: str | None
    ) -> list[Data]:
        """Poll again if the server's longest wait is shorter than `wait_ms`."""
        path = f"{_queue(queue)}/poll"
        how = {"batch": batch, "visibility_ms": visibility_ms, "worker": worker}
        end = time.monotonic() + wait_ms / 1000
        while True:
            left = max(0.0, end - time.monotonic())
            messages: list[Data] = self._web.request("POST", path, wait_ms=round(left * 1000), wait=left, **how)[
                "messages"
            ]
            if messages or time.monotonic() + EARLY_SECONDS >= end:
                return messages
            time.sleep(EARLY_SECONDS)

    def take(self, queue: str, *, batch: int, wait_ms: int) -> list[Data]:
        leased = self.poll(queue, batch=batch, wait_ms=wait_ms, visibility_ms=None, worker=None)
        if not leased:
            return []
        items = [{"id": message["id"], "token": message["token"]} for message in leased]
        results = self.settle("ack", queue, items)["results"]
        return [
            without_lease(message)
            for message, settled in zip(leased, results, strict=True)
            if settled["result"] == "ok"
        ]

    def settle(self, verb: Verb, queue: str, items: Sequence[Data], *, ms: int | None = None) -> Data:
        body: Data = {"items": items} if ms is None else {"items": items, "ms": ms}
        return self._data("POST", f"{_queue(queue)}/{verb}", body)

    def get(self, queue: str, message_id: int) -> Data:
        return self._data("GET", f"{_queue(queue)}/messages/{message_id}")

    def remove(self, queue: str, message_id: int) -> None:
        self._web.request("DELETE", f"{_queue(queue)}/messages/{message_id}")

    def export(self, queue: str) -> Iterator[bytes]:
        response = self._web.open("GET", f"{_queue(queue)}/export", wait=0)
        try:
            rest = b""
            # readline() would take a response that was cut off for a complete one.
            while part := response.read1(PART_BYTES):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield line + b"\n"
            if rest:
                yield rest
        except (OSError, http.client.HTTPException) as error:
            raise self._web.unreachable(error) from None
        finally:
            if not response.isclosed():
                self._web.drop()

    def import_(self, queue: str, lines: Iterable[bytes]) -> Data:
        path = f"{_queue(queue)}/import"
        response = self._web.open("POST", path, b"".join(lines), content_type="application/x-ndjson", wait=0)
        answer: Data = self._web.decode(response)
        return answer

    # API keys, workers, health and metrics

    def add_key(self, owner: KeyOwner, *, name: str, rights: Sequence[str]) -> Data:
        return self._data("POST", _keys(owner), {"name": name, "rights": rights})

    def list_keys(self, owner: KeyOwner) -> list[Data]:
        keys: list[Data] = self._web.request("GET", _keys(owner))["keys"]
        return keys

    def remove_key(self, owner: KeyOwner, key_id: str) -> None:
        self._web.request("DELETE", f"{_keys(owner)}/{quote(key_id, safe='')}")

    def workers(self) -> Iterator[Data]:
        after = None
        while True:
            page = self._web.request("GET", "/workers", after=after, limit=PAGE)
            yield from page["workers"]
            after = page["next"]
            if after is None:
                return

    def ready(self) -> Data:
        try:
            return self._data("GET", "/readyz")
        except RequestRefused as error:
            if error.status != 503:
                raise
            not_ready: Data = msgspec.json.decode(error.body)
            return not_ready

    def metrics(self) -> bytes:
        return self._web.read(self._web.open("GET", "/metrics", wait=0))

    def _data(self, method: str, path: str, value: Any = None, *, wait: float = 0, **query: Any) -> Data:
        answer: Data = self._web.request(method, path, value, wait=wait, **query)
        return answer

    def close(self) -> None:
        self._web.close()


def _keys(owner: KeyOwner) -> str:
    kind = "queues" if owner.queue else "streams"
    return f"/{kind}/{quote(owner.name, safe='')}/keys"


def _queue(name: str) -> str:
    return f"/queues/{quote(name, safe='')}"
