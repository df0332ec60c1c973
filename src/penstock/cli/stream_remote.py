"""The stream backend over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.cli.output import Data
from penstock.cli.web import ServerAway, Web

if TYPE_CHECKING:
    from penstock.core.model import Progress

PAGE = 1_000
ARROW = "application/vnd.apache.arrow.stream"
ARROW_PAGE = 1_000_000
LONG_SECONDS = 3_600.0


class RemoteStreamBackend:
    def __init__(self, url: str, token: str | None) -> None:
        self._web = Web(url, token)

    def create(self, name: str, options: Mapping[str, Any]) -> Data:
        return self._data("POST", "/streams", {"name": name, **options})

    def list_all(self, prefix: str) -> Iterator[Data]:
        after = None
        while True:
            page = self._data("GET", "/streams", prefix=prefix or None, after=after, limit=PAGE)
            yield from page["streams"]
            after = page["next"]
            if after is None:
                return

    def show(self, name: str) -> Data:
        return self._data("GET", _path(name))

    def drop(self, name: str, *, force: bool) -> Data:
        return self._data("DELETE", _path(name), force=force or None)

    def trim(self, name: str, *, before: int | None, force: bool) -> Data:
        return self._data("POST", f"{_path(name)}/trim", {"before": before, "force": force}, wait=LONG_SECONDS)

    def append(self, name: str, records: Sequence[bytes], *, text: bool, key: str | None) -> Data:
        values = [record.decode() if text else msgspec.Raw(record) for record in records]
        return self._append(name, msgspec.json.encode({"records": values}), "application/json", key)

    def append_arrow(self, name: str, batches: Iterable[Any], *, key: str | None) -> Iterator[Data]:
        from penstock.client.stream_json import arrow_bodies

        for number, body in enumerate(arrow_bodies(batches)):
            yield self._append(name, body, ARROW, None if key is None else f"{key}:{number}")

    def _append(self, name: str, body: bytes, content_type: str, key: str | None) -> Data:
        path = f"{_path(name)}/records"
        extra = None if key is None else {"Idempotency-Key": key}
        try:
            response = self._web.open("POST", path, body, content_type=content_type, wait=0, extra=extra)
        except ServerAway:
            # Only an append with a key can be sent again safely.
            if key is None:
                raise
            response = self._web.open("POST", path, body, content_type=content_type, wait=0, extra=extra)
        again = response.status == 200
        done: Data = self._web.decode(response)
        return {**done, "again": again}

    def read(self, name: str, *, start: int | None, limit: int, wait_ms: int) -> Data:
        query = {"from": start, "limit": limit, "wait_ms": wait_ms}
        return self._data("GET", f"{_path(name)}/records", wait=wait_ms / 1000, **query)

    def read_arrow(self, name: str, *, start: int | None, limit: int | None) -> Iterator[Any]:
        from penstock.client.http11 import HttpResponse
        from penstock.client.stream_json import NEXT_HEADER, arrow_page
        from penstock.wire.arrow_records import check_arrow

        check_arrow()
        info = self.show(name)
        at = info["first"] if start is None else start
        end = info["next"] if limit is None else min(at + limit, info["next"])
        while at < end or at > info["next"]:
            target = f"{_path(name)}/records?from={at}&limit={max(1, min(end - at, ARROW_PAGE))}"
            response = self._web.open("GET", target, wait=0, extra={"Accept": ARROW})
            headers = {NEXT_HEADER: (response.headers.get(NEXT_HEADER.decode()) or "").encode()}
            at, batches = arrow_page(HttpResponse(response.status, headers, self._web.read(response)))
            yield from batches

    def consumers(self, name: str) -> list[Data]:
        found: list[Data] = self._data("GET", f"{_path(name)}/consumers")["consumers"]
        return found

    def commit(self, name: str, consumer: str, offset: int, *, force: bool) -> Data:
        return self._data("PUT", _consumer(name, consumer), {"offset": offset, "force": force})

    def forget(self, name: str, consumer: str) -> None:
        self._web.request("DELETE", _consumer(name, consumer))

    def check(self, name: str, progress: Progress) -> Data:
        return self._data("POST", f"{_path(name)}/check", wait=LONG_SECONDS)

    def repair(self, name: str, progress: Progress) -> Data:
        return self._data("POST", f"{_path(name)}/repair", wait=LONG_SECONDS)

    def _data(self, method: str, path: str, value: Any = None, *, wait: float = 0, **query: Any) -> Data:
        answer: Data = self._web.request(method, path, value, wait=wait, **query)
        return answer

    def close(self) -> None:
        self._web.close()


def _path(name: str) -> str:
    return f"/streams/{quote(name, safe='')}"


def _consumer(name: str, consumer: str) -> str:
    return f"{_path(name)}/consumers/{quote(consumer, safe='')}"
