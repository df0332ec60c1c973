"""The stream backend directly on files or a database.

A server may have the files open at the same time, but only one process can append.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from penstock.cli.output import Data
from penstock.core.model import Content, Progress
from penstock.errors import CannotOpen
from penstock.log.interface import EARLIEST
from penstock.log.model import LogPage, NewRecord, StreamOptions
from penstock.log.streams import streams_beside
from penstock.server.api.streams.bodies import new_record
from penstock.store.factory import POSTGRES, open_streams
from penstock.wire.arrow_records import check_arrow, in_commits, payloads_of
from penstock.wire.streams import (
    Appended,
    PageView,
    consumer_view,
    record_view,
    report_view,
    stream_detail,
    stream_view,
)

PAGE = 1_000


class LocalStreamBackend:
    def __init__(self, where: str, *, create: bool) -> None:
        folder = streams_beside(where)
        if not create and not where.startswith(POSTGRES) and not folder.is_dir():
            raise CannotOpen(
                f"there are no streams in {folder}", hint="create one with `penstock stream create` and the same option"
            )
        self._streams = open_streams(where)

    def create(self, name: str, options: Mapping[str, Any]) -> Data:
        self._streams.create(name, StreamOptions().changed(dict(options)))
        return _plain(stream_view(self._streams.show(name)))

    def list_all(self, prefix: str) -> Iterator[Data]:
        found = self._streams.list_streams(prefix=prefix, limit=PAGE)
        while found:
            yield from (_plain(stream_view(info)) for info in found)
            found = self._streams.list_streams(prefix=prefix, after=found[-1].name, limit=PAGE)

    def show(self, name: str) -> Data:
        streams = self._streams
        return _plain(stream_detail(streams.show(name), streams.segments(name), streams.consumers(name)))

    def drop(self, name: str, *, force: bool) -> Data:
        self._streams.drop(name, force=force)
        return {"dropped": name}

    def trim(self, name: str, *, before: int | None, force: bool) -> Data:
        return _plain(self._streams.trim(name, before, force=force))

    def append(self, name: str, records: Sequence[bytes], *, text: bool, key: str | None) -> Data:
        if text:
            payloads = [NewRecord(record, Content.TEXT) for record in records]
        else:
            payloads = [new_record(msgspec.Raw(record), "records") for record in records]
        done = self._streams.append(name, payloads)
        return _plain(Appended(done.first, done.last, len(payloads)))

    def append_arrow(self, name: str, batches: Iterable[Any], *, key: str | None) -> Iterator[Data]:
        for batch in batches:
            for payloads in in_commits(payloads_of(batch)):
                done = self._streams.append(name, payloads)
                yield _plain(Appended(done.first, done.last, len(payloads)))

    def read(self, name: str, *, start: int | None, limit: int, wait_ms: int) -> Data:
        deadline = time.monotonic() + wait_ms / 1000
        offset = EARLIEST if start is None else start
        page = self._streams.read(name, offset, limit=limit)
        while not page.records and (left := deadline - time.monotonic()) > 0:
            self._streams.wait(name, page.next, left)
            page = self._streams.read(name, page.next, limit=limit)
        return _page(page)

    def read_arrow(self, name: str, *, start: int | None, limit: int | None) -> Iterator[Any]:
        check_arrow()
        first = self._streams.show(name).first if start is None else start
        yield from self._streams.read_arrow(name, first, None if limit is None else first + limit)

    def consumers(self, name: str) -> list[Data]:
        return [_plain(consumer_view(consumer)) for consumer in self._streams.consumers(name)]

    def commit(self, name: str, consumer: str, offset: int, *, force: bool) -> Data:
        return _plain(consumer_view(self._streams.commit(name, consumer, offset, force=force)))

    def forget(self, name: str, consumer: str) -> None:
        self._streams.forget(name, consumer)

    def check(self, name: str, progress: Progress) -> Data:
        return _plain(report_view(self._streams.check(name, progress)))

    def repair(self, name: str, progress: Progress) -> Data:
        return _plain(report_view(self._streams.repair(name, progress)))

    def close(self) -> None:
        self._streams.close()


def _page(page: LogPage) -> Data:
    return _plain(PageView([record_view(record) for record in page.records], page.next, page.lost))


def _plain(view: Any) -> Data:
    """Return the view as a client gets it over HTTP."""
    data: Data = msgspec.json.decode(msgspec.json.encode(view))
    return data
