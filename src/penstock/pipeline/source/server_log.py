"""Reads the journal or a stream from a server in pages of Arrow; retries while the server is unavailable."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pyarrow as pa

from penstock.client.http11 import HttpResponse
from penstock.errors import NotFound, OffsetTrimmed, ServerFault, UnknownStream
from penstock.journal.arrow import SCHEMA as EVENTS
from penstock.log.arrow import SCHEMA as RECORDS
from penstock.log.consumers import Kind
from penstock.log.model import SegmentInfo
from penstock.pipeline.source.offset_ranges import OffsetRange
from penstock.pipeline.source.server_session import ARROW, open_session, send

# A new server creates its journal shortly after its folder.
CREATION_SECONDS_MAX, LOOK_SECONDS = 60.0, 0.1
# Upper limit; the server ends a page after some megabytes.
PAGE_RECORDS = 100_000
OFFSET = "offset"
ACCEPT_ARROW = b"accept: %s\r\n" % ARROW


class ServerLog:
    def __init__(self, url: str, stream: str | None, token: str | None) -> None:
        self.name = "journal" if stream is None else stream
        self._uid = "uid" if stream is None else "created_at"
        self._path = "/journal" if stream is None else f"/streams/{quote(stream, safe='')}"
        self._records = "/events" if stream is None else "/records"
        self._schema = EVENTS if stream is None else RECORDS
        self._session = open_session(url, token)

    @property
    def uid(self) -> str:
        deadline = time.monotonic() + CREATION_SECONDS_MAX
        while not (uid := str(self._show()[self._uid])):
            if time.monotonic() > deadline:
                raise UnknownStream(self.name)
            time.sleep(LOOK_SECONDS)
        return uid

    @property
    def first_offset(self) -> int:
        return int(self._show()["first"])

    @property
    def next_offset(self) -> int:
        return int(self._show()["next"])

    def segments(self) -> list[SegmentInfo]:
        """Return the log as one segment; only the mean size of a record is needed."""
        shown = self._show()
        first, records = int(shown["first"]), int(shown["next"]) - int(shown["first"])
        return [SegmentInfo(first=first, records=records, bytes=int(shown["bytes"]), sealed=False)]

    def read(self, part: OffsetRange, columns: Sequence[str], *, skip_lost: bool = False) -> Iterator[pa.RecordBatch]:
        shape = pa.schema([self._schema.field(name) for name in columns])
        at = part.start
        while at < part.end:
            try:
                body, following = self._page(at, min(PAGE_RECORDS, part.end - at), columns)
            except OffsetTrimmed as error:
                if not skip_lost:
                    raise
                at = error.first_offset
                continue
            if following <= at:
                raise ServerFault(f"the server returned no records of {self.name!r} at offset {at}", status=200)
            for batch in pa.ipc.open_stream(body):
                yield batch.select(list(columns)).cast(shape)
            at = following

    def _page(self, start: int, limit: int, columns: Sequence[str], wait_ms: int = 0) -> tuple[bytes, int]:
        query = {"from": start, "limit": limit, "columns": ",".join({OFFSET: 0, **dict.fromkeys(columns)})}
        if wait_ms:
            query["wait_ms"] = wait_ms
        answer = self._request("GET", f"{self._records}?{urlencode(query)}", wait_ms=wait_ms, headers=ACCEPT_ARROW)
        return answer.body, int(answer.headers.get(b"x-penstock-next", 0))

    def report(self, consumer: str, offset: int, kind: Kind = "consumer") -> None:
        body = msgspec.json.encode({"offset": offset, "force": True, "kind": kind})
        self._request("PUT", f"/consumers/{quote(consumer, safe='')}", body)

    def wait(self, offset: int, seconds: float) -> None:
        self._page(offset, 1, [OFFSET], wait_ms=max(1, round(seconds * 1000)))

    def close(self) -> None:
        self._session.close()

    def _show(self) -> dict[str, Any]:
        return msgspec.json.decode(self._request("GET", "").body, type=dict[str, Any])

    def _request(
        self, method: str, path: str, body: bytes | None = None, *, wait_ms: int = 0, headers: bytes = b""
    ) -> HttpResponse:
        how = {"queue": self.name, "wait_seconds": wait_ms / 1000, "headers": headers}
        try:
            return send(self._session, method, self._path + path, body, **how)
        except NotFound:
            raise UnknownStream(self.name) from None
