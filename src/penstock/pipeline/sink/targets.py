"""Targets of staged rows: a queue or a stream of a file, a database or a server. A full or overloaded target slows the
write down; it fails only if nothing was accepted for a long time."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import pyarrow as pa

from penstock import Client, connect
from penstock.broker._sync.broker import Broker
from penstock.client._sync.http_session import GATEWAY_ERRORS
from penstock.client._sync.store_transport import StoreTransport
from penstock.core.model import PushItem
from penstock.errors import (
    BatchTooLarge,
    PayloadTooLarge,
    PenstockError,
    ServerFault,
    StoreBusy,
    StoreUnreachable,
    StreamExists,
    TryLater,
    UnknownStream,
    Unreachable,
)
from penstock.log.append_dedup import append_once
from penstock.log.model import NewRecord, Payload
from penstock.pipeline.sink.rows import EMBEDDED, Row, message_of, record_of
from penstock.pipeline.source.log_sources import SERVERS
from penstock.pipeline.source.options import WriteOptions
from penstock.pipeline.source.server_session import ARROW, open_session, send
from penstock.store.factory import open_store, open_streams
from penstock.wire.arrow_records import COLUMN

STALLED_SECONDS_MAX = 600.0
PAUSE_SECONDS = 0.05
Chunk = list[Any]
T = TypeVar("T")


class SinkTarget(ABC):
    rows_max: int
    bytes_max = 4 << 20
    left_out = 0
    """Rows that the server or the stream rejected as too large."""

    @abstractmethod
    def item(self, row: Row, key: str) -> tuple[Any, int]:
        """Return the message or record of a row, and its approximate size."""

    @abstractmethod
    def position(self) -> int | None:
        """Return the value to pass to `send` as `since`."""

    @abstractmethod
    def send(self, chunk: Chunk, key: str, since: int | None) -> int | None:
        """Send a chunk once and return the position after it; it may have been sent already after `since`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> SinkTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def target_of(options: WriteOptions) -> SinkTarget:
    if options.queue is not None:
        return QueueTarget(options.url, options.queue, options.token)
    assert options.stream is not None
    if options.url.startswith(SERVERS):
        return ServerStream(options.url, options.stream, options.token)
    return StoreStream(options.url, options.stream)


class QueueTarget(SinkTarget):
    """A queue, which deduplicates messages by key."""

    rows_max = 1_000

    def __init__(self, url: str, queue: str, token: str | None) -> None:
        self._queue = queue
        self._client = _client(url, token)
        with ExitStack() as undo:
            undo.callback(self._client.close)
            _retry_while_busy(lambda: self._client.create_queue(queue, exist_ok=True))
            undo.pop_all()

    def item(self, row: Row, key: str) -> tuple[PushItem, int]:
        message = message_of(row, key)
        return message, len(message.payload)

    def position(self) -> None:
        return None

    def send(self, chunk: Chunk, key: str, since: int | None) -> None:
        """Send in ever smaller parts if the queue rejects a push, because a full queue may never fit a whole chunk."""
        waiting, size = list(chunk), len(chunk)
        deadline = time.monotonic() + STALLED_SECONDS_MAX
        while waiting:
            part = waiting[:size]
            try:
                self._client.transport.push(self._queue, part)
            except (PayloadTooLarge, BatchTooLarge) as error:
                if isinstance(error, BatchTooLarge) and len(part) > 1:
                    size = len(part) // 2
                else:
                    # Drop the largest, which is at least as large as the rejected one.
                    waiting.pop(max(range(len(part)), key=lambda at: len(part[at].payload)))
                    self.left_out += 1
            except PenstockError as error:
                if not _is_transient(error) or time.monotonic() > deadline:
                    raise
                if isinstance(error, TryLater):
                    size = max(1, size // 2)
                _pause(error)
            else:
                del waiting[: len(part)]
                deadline = time.monotonic() + STALLED_SECONDS_MAX

    def close(self) -> None:
        self._client.close()


def _client(url: str, token: str | None) -> Client:
    """Return a client without retries: a smaller push may succeed where repeating the same one would not."""
    if url.startswith(SERVERS):
        return connect(url, token=token, retry_for=0)
    where = url.removeprefix("sqlite:///")
    store = open_store(where)
    return Client(StoreTransport(Broker(store, clock=store.clock, limits=EMBEDDED), where, 0, "full"))


class StreamTarget(SinkTarget):
    """A stream; each chunk is one append with a key, searched for before it is sent a second time."""

    rows_max = 10_000
    record_bytes_max: int
    """Size limit of the stream's records."""

    def item(self, row: Row, key: str) -> tuple[Payload, int]:
        return record_of(row)

    def send(self, chunk: Chunk, key: str, since: int | None) -> int | None:
        fitting = [each for each in chunk if _length(each) <= self.record_bytes_max]
        self.left_out += len(chunk) - len(fitting)
        return self.append(fitting, key, since) if fitting else since

    @abstractmethod
    def append(self, chunk: Chunk, key: str, since: int | None) -> int: ...


def _length(record: Payload) -> int:
    return len(record.data if isinstance(record, NewRecord) else record)


class StoreStream(StreamTarget):
    """A stream in a folder or a database."""

    def __init__(self, url: str, stream: str) -> None:
        self._stream = stream
        with ExitStack() as undo:
            self._streams = open_streams(url.removeprefix("sqlite:///"))
            undo.callback(self._streams.close)
            _retry_while_busy(self._create)
            self.record_bytes_max = self._streams.show(stream).options.record_bytes
            undo.pop_all()

    def _create(self) -> None:
        with suppress(StreamExists):  # It may exist with other options.
            self._streams.create(self._stream)

    def position(self) -> int:
        return self._streams.next_offset(self._stream)

    def append(self, chunk: Chunk, key: str, since: int | None) -> int:
        done = _retry_while_busy(lambda: append_once(self._streams, self._stream, key, chunk, since))
        return done.last + 1

    def close(self) -> None:
        self._streams.close()


class ServerStream(StreamTarget):
    """A stream of a server, written as Arrow over HTTP."""

    def __init__(self, url: str, stream: str, token: str | None) -> None:
        self._session = open_session(url, token, retry_seconds=STALLED_SECONDS_MAX)
        self._stream = stream
        self._path = f"/streams/{quote(stream, safe='')}"
        with ExitStack() as undo:
            undo.callback(self._session.close)
            try:
                self._request("GET", self._path)
            except UnknownStream:
                self._request("POST", "/streams", {"name": stream})
            self.record_bytes_max = self._request("GET", self._path)["options"]["record_bytes"]
            undo.pop_all()

    def position(self) -> int:
        return int(self._request("GET", self._path)["next"])

    def append(self, chunk: Chunk, key: str, since: int | None) -> int:
        path = f"{self._path}/records" + ("" if since is None else f"?since={since}")
        headers = f"idempotency-key: {quote(key, safe=':')}\r\n".encode()
        return int(self._request("POST", path, _arrow(chunk), headers=headers, content_type=ARROW)["last"]) + 1

    def _request(self, method: str, path: str, body: Any = None, **how: Any) -> dict[str, Any]:
        answer = send(self._session, method, path, body, queue=self._stream, **how)
        return msgspec.json.decode(answer.body, type=dict[str, Any])

    def close(self) -> None:
        self._session.close()


def _arrow(chunk: Sequence[Payload]) -> bytes:
    texts = [each.data.decode() for each in chunk if isinstance(each, NewRecord)]
    column = pa.array(texts, pa.string()) if texts else pa.array(chunk, pa.binary())
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([column], names=[COLUMN])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _retry_while_busy(do: Callable[[], T]) -> T:
    """Retry transient errors: another process may hold the stream's write lock for a while."""
    deadline = time.monotonic() + STALLED_SECONDS_MAX
    while True:
        try:
            return do()
        except PenstockError as error:
            if not _is_transient(error) or time.monotonic() > deadline:
                raise
            _pause(error)


def _is_transient(error: PenstockError) -> bool:
    """Return True if a retry may succeed; idempotency keys make retries safe even if the data arrived."""
    if isinstance(error, ServerFault):
        return error.status in (503, *GATEWAY_ERRORS)
    return isinstance(error, TryLater | StoreBusy | StoreUnreachable | Unreachable)


def _pause(error: PenstockError) -> None:
    retry_after_ms = error.retry_after_ms if isinstance(error, TryLater) else 0
    time.sleep(max(PAUSE_SECONDS, retry_after_ms / 1000))
