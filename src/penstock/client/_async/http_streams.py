"""Streams over HTTP. Concurrent appends are batched, and have idempotency keys so that they can be retried."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal
from urllib.parse import quote, urlencode

from penstock.client import stream_json
from penstock.client._async.batcher import RequestBatcher
from penstock.client._async.http_session import Session
from penstock.client._concurrency_async import sleep
from penstock.client.queue_json import sendable
from penstock.client.stream_types import joined
from penstock.client.types import AUTO_KEY, Page
from penstock.core import fork_safety
from penstock.errors import InvalidInput, PenstockError
from penstock.log.interface import EARLIEST
from penstock.log.model import Consumer, NewRecord, StreamInfo, Trimmed
from penstock.log.model import LogPage as RecordPage
from penstock.log.streams import check_stream_name
from penstock.wire.arrow_records import check_arrow
from penstock.wire.streams import Appended

JOINED_BYTES_MAX = 4 << 20
# Longest wait of one poll; a longer wait takes several.
WAIT_SECONDS_MAX = 20.0
# Pause between polls that the server ends early, because it is shutting down.
EARLY_SECONDS = 0.05
Records = Sequence[NewRecord]


class HttpStreams:
    kind: Literal["server"] = "server"

    def __init__(self, session: Session, linger: float) -> None:
        self.session = session
        self._linger = linger
        self.after_fork_in_child()
        fork_safety.register_reset(self)

    # After a fork the child must not send what the parent's threads were about to send.

    def after_fork_in_child(self) -> None:
        self._appends: dict[str, RequestBatcher[Records, Appended]] = {}

    # Appending

    async def append(self, name: str, records: Records) -> Appended:
        batcher = self._appends.get(name)
        if batcher is None:
            batcher = self._appends[name] = RequestBatcher(
                lambda batch, attempt: self._append_all(name, batch, attempt.key),
                weigh=_weight,
                weight_max=JOINED_BYTES_MAX,
                linger=self._linger,
            )
        return await batcher.join(records)

    async def _append_all(self, name: str, batch: list[Records], key: str) -> list[Appended | Exception]:
        """Send all in one request; if the server refuses it because of one part, send each part on its own."""
        body = {"records": [stream_json.one_record(record) for records in batch for record in records]}
        try:
            done = await self.session.get(
                stream_json.appended, "POST", f"{_path(name)}/records", body, queue=name, headers=_key(key)
            )
        except InvalidInput as error:
            if len(batch) == 1:
                return [error]
            half = len(batch) // 2
            first = await self._append_all(name, batch[:half], f"{key}l")
            return first + await self._append_all(name, batch[half:], f"{key}r")
        except PenstockError as error:
            return [error] * len(batch)
        outcomes: list[Appended | Exception] = []
        at = done.first
        for records in batch:
            outcomes.append(Appended(at, at + len(records) - 1, len(records)))
            at += len(records)
        return outcomes

    async def append_arrow(self, name: str, batches: Iterable[Any]) -> Appended:
        parts = []
        for body in stream_json.arrow_bodies(batches):
            parts.append(
                await self.session.get(
                    stream_json.appended,
                    "POST",
                    f"{_path(name)}/records",
                    body,
                    queue=name,
                    headers=_key(os.urandom(12).hex()),
                    content_type=stream_json.ARROW,
                )
            )
        if not parts:
            raise InvalidInput("no records to append", field="records")
        return joined(parts)

    # Reading

    async def read(self, name: str, offset: int, limit: int, wait_seconds: float) -> RecordPage:
        where = {} if offset == EARLIEST else {"from": offset}
        return await self._wait_for(name, f"{_path(name)}/records", where | {"limit": limit}, wait_seconds)

    async def next(self, name: str, consumer: str, limit: int, wait_seconds: float) -> RecordPage:
        where = {"consumer": consumer, "limit": limit}
        return await self._wait_for(name, f"{_path(name)}/next", where, wait_seconds)

    async def _wait_for(self, name: str, path: str, query: dict[str, Any], wait_seconds: float) -> RecordPage:
        deadline = time.monotonic() + wait_seconds
        while True:
            began = time.monotonic()
            left = min(max(0.0, deadline - began), WAIT_SECONDS_MAX)
            target = f"{path}?{urlencode(query | {'wait_ms': round(left * 1000)})}"
            page = stream_json.log_page(
                await self.session.get(stream_json.page, "GET", target, queue=name, wait_seconds=left)
            )
            if page.records or time.monotonic() >= deadline:
                return page
            if time.monotonic() - began < left / 10:
                await sleep(min(EARLY_SECONDS, max(0.0, deadline - time.monotonic())))

    async def read_arrow(self, name: str, start: int | None, end: int | None) -> AsyncIterator[Any]:
        check_arrow()
        info = await self.info(name)
        at = info.first if start is None else start
        end = info.next if end is None else min(end, info.next)
        while at < end or at > info.next:
            target = f"{_path(name)}/records?from={at}&limit={max(1, min(end - at, 1_000_000))}"
            answer, _ = await self.session.request(
                "GET", target, queue=name, headers=b"accept: %s\r\n" % stream_json.ARROW
            )
            at, batches = stream_json.arrow_page(answer)
            for batch in batches:
                yield batch

    # Consumers

    async def commit(self, name: str, consumer: str, offset: int, force: bool) -> Consumer:
        body = {"offset": offset, "force": force}
        found = await self.session.get(stream_json.consumer, "PUT", _consumer(name, consumer), body, queue=name)
        return stream_json.stream_consumer(found)

    async def create_consumer(self, name: str, consumer: str) -> Consumer:
        path = f"{_path(name)}/consumers"
        found = await self.session.get(stream_json.consumer, "POST", path, {"consumer": consumer}, queue=name)
        return stream_json.stream_consumer(found)

    async def consumers(self, name: str) -> list[Consumer]:
        found = await self.session.get(stream_json.consumer_list, "GET", f"{_path(name)}/consumers", queue=name)
        return [stream_json.stream_consumer(consumer) for consumer in found.consumers]

    async def consumer(self, name: str, consumer: str) -> Consumer:
        return stream_json.stream_consumer(
            await self.session.get(stream_json.consumer, "GET", _consumer(name, consumer), queue=name)
        )

    async def forget(self, name: str, consumer: str) -> None:
        await self.session.request("DELETE", _consumer(name, consumer), queue=name, repeatable=False)

    # Streams

    async def create(self, name: str, options: dict[str, Any]) -> None:
        body = {"name": check_stream_name(name), **sendable(options)}
        await self.session.get(stream_json.stream, "POST", "/streams", body, queue=name)

    async def list_all(self, prefix: str, limit: int, after: str | None) -> Page[StreamInfo]:
        given = {"prefix": prefix, "limit": limit} | ({} if after is None else {"after": after})
        found = await self.session.get(stream_json.stream_list, "GET", f"/streams?{urlencode(given)}")
        return Page([stream_json.stream_info(stream) for stream in found.streams], found.next)

    async def info(self, name: str) -> StreamInfo:
        return stream_json.stream_info(await self.session.get(stream_json.stream, "GET", _path(name), queue=name))

    async def configure(self, name: str, changes: dict[str, Any]) -> StreamInfo:
        found = await self.session.get(stream_json.stream, "PATCH", _path(name), sendable(changes), queue=name)
        return stream_json.stream_info(found)

    async def trim(self, name: str, before: int | None, force: bool) -> Trimmed:
        body = {"before": before, "force": force}
        return await self.session.get(stream_json.trimmed, "POST", f"{_path(name)}/trim", body, queue=name)

    async def drop(self, name: str, force: bool) -> None:
        path = f"{_path(name)}?force={str(force).lower()}"
        await self.session.request("DELETE", path, queue=name, repeatable=False)


def _key(key: str) -> bytes:
    """Return the header that makes the server answer a retry with the result of the first attempt."""
    return f"idempotency-key: {AUTO_KEY}{key}\r\n".encode()


def _weight(records: Records) -> int:
    return sum(len(record.data) + 64 for record in records)


def _path(name: str) -> str:
    return "/streams/" + quote(check_stream_name(name), safe="")


def _consumer(name: str, consumer: str) -> str:
    return f"{_path(name)}/consumers/{quote(consumer, safe='')}"
