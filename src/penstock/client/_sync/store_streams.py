# Made by tools/unasync.py from the asynchronous twin: change that.
"""Streams beside a SQLite file or in a database, used directly from this process.

Only one process at a time can append to a stream in files; all may read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from penstock.client._sync.retry import Retry
from penstock.client._concurrency_threads import offload, sleep
from penstock.client.stream_types import joined
from penstock.client.types import Page
from penstock.core import fork_safety
from penstock.core.limits import POLL_SECONDS
from penstock.errors import InvalidInput, StoreBusy, StoreClosed
from penstock.log.interface import EARLIEST, Streams
from penstock.log.model import Consumer, NewRecord, Payload, StreamInfo, StreamOptions, Trimmed
from penstock.log.model import LogPage as RecordPage
from penstock.store.factory import Durability, open_streams
from penstock.wire.arrow_records import check_arrow, in_commits, payloads_of
from penstock.wire.streams import Appended

T = TypeVar("T")


class StoreStreams:
    kind: Literal["store"] = "store"

    def __init__(self, where: str, retry_for: float, durability: Durability = "full") -> None:
        self._where = where
        self._retry_for = retry_for
        self._durability = durability
        self._closed = False
        self.after_fork_in_child()
        fork_safety.register_reset(self)

    # After a fork the child must not use the files that the parent has open for writing.

    def after_fork_in_child(self) -> None:
        self._opened: Streams | None = None
        self._opening = threading.Lock()

    def opened(self) -> Streams:
        """Open the streams on first use, so that a client that uses only queues creates no folder."""
        with self._opening:
            if self._closed:
                raise StoreClosed("the client is closed")
            if self._opened is None:
                if self._where == ":memory:":
                    raise InvalidInput("streams are stored in files; they cannot be in memory", field="url")
                self._opened = open_streams(self._where, durability=self._durability)
            return self._opened

    def _call(self, call: Callable[[Streams], T]) -> T:
        return offload(lambda: call(self.opened()))

    def _write(self, call: Callable[[Streams], T]) -> T:
        """Retry for a while if another process is writing to the stream."""
        retry = Retry(self._retry_for)
        while True:
            try:
                return self._call(call)
            except StoreBusy as error:
                retry.wait(error)

    def append(self, name: str, records: Sequence[NewRecord]) -> Appended:
        return self._append(name, records)

    def _append(self, name: str, payloads: Sequence[Payload]) -> Appended:
        done = self._write(lambda streams: streams.append(name, payloads))
        return Appended(done.first, done.last, len(payloads))

    def append_arrow(self, name: str, batches: Iterable[Any]) -> Appended:
        parts = [self._append(name, payloads) for batch in batches for payloads in in_commits(payloads_of(batch))]
        if not parts:
            raise InvalidInput("no records to append", field="records")
        return joined(parts)

    def read(self, name: str, offset: int, limit: int, wait_seconds: float) -> RecordPage:
        return self._wait_for(name, lambda streams: streams.read(name, offset, limit=limit), wait_seconds)

    def next(self, name: str, consumer: str, limit: int, wait_seconds: float) -> RecordPage:
        return self._wait_for(name, lambda streams: streams.next(name, consumer, limit=limit), wait_seconds)

    def _wait_for(self, name: str, look: Callable[[Streams], RecordPage], wait_seconds: float) -> RecordPage:
        deadline = time.monotonic() + wait_seconds
        while True:
            page = self._call(look)
            if page.records or time.monotonic() >= deadline:
                return page
            self._wait(name, page.next, deadline)

    def _wait(self, name: str, offset: int, deadline: float) -> None:
        """Wait until there may be new records. Polling costs two system calls; a thread per waiter would cost more."""
        grown = threading.Event()
        stop = self._call(lambda streams: streams.listen(name, grown.set))
        try:
            if stop is None:
                while self.opened().next_offset(name) <= offset and (left := deadline - time.monotonic()) > 0:
                    sleep(min(POLL_SECONDS, left))
            elif self._call(lambda streams: streams.next_offset(name)) <= offset:
                while not grown.is_set() and (left := deadline - time.monotonic()) > 0:
                    sleep(min(POLL_SECONDS, left))
        finally:
            if stop is not None:
                stop()

    def read_arrow(self, name: str, start: int | None, end: int | None) -> Iterator[Any]:
        check_arrow()
        batches = self._call(lambda s: s.read_arrow(name, EARLIEST if start is None else start, end))
        while (batch := offload(lambda: next(batches, None))) is not None:
            yield batch

    def commit(self, name: str, consumer: str, offset: int, force: bool) -> Consumer:
        return self._call(lambda streams: streams.commit(name, consumer, offset, force=force))

    def create_consumer(self, name: str, consumer: str) -> Consumer:
        return self._call(lambda streams: streams.create_consumer(name, consumer))

    def consumers(self, name: str) -> list[Consumer]:
        return self._call(lambda streams: streams.consumers(name))

    def consumer(self, name: str, consumer: str) -> Consumer:
        return self._call(lambda streams: streams.consumer(name, consumer))

    def forget(self, name: str, consumer: str) -> None:
        self._call(lambda streams: streams.forget(name, consumer))

    def create(self, name: str, options: dict[str, Any]) -> None:
        self._call(lambda streams: streams.create(name, StreamOptions().changed(options)))

    def list_all(self, prefix: str, limit: int, after: str | None) -> Page[StreamInfo]:
        found = self._call(lambda streams: streams.list_streams(prefix=prefix, after=after, limit=limit))
        return Page(found, found[-1].name if len(found) == limit else None)

    def info(self, name: str) -> StreamInfo:
        return self._call(lambda streams: streams.show(name))

    def configure(self, name: str, changes: dict[str, Any]) -> StreamInfo:
        return self._write(lambda streams: streams.configure(name, streams.show(name).options.changed(changes)))

    def trim(self, name: str, before: int | None, force: bool) -> Trimmed:
        return self._write(lambda streams: streams.trim(name, before, force=force))

    def drop(self, name: str, force: bool) -> None:
        self._write(lambda streams: streams.drop(name, force=force))

    def close(self) -> None:
        with self._opening:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is not None:
            offload(opened.close)
