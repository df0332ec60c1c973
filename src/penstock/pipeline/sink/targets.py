"""Where staged rows go: a queue or a stream, of a file, a database or a server. One that is full, or under pressure,
makes it slower; it fails only if nothing at all went through for a long time."""

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
from penstock.client._sync.store_streams import StoreStreams
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
    Unreachable,
)
from penstock.log.append_dedup import append_once
from penstock.log.model import NewRecord, Payload
from penstock.pipeline.sink.rows import EMBEDDED, Row, message_of, record_of
from penstock.pipeline.source.http_client import ARROW, JSON, PASSING, ServerClient, ServerRefused
from penstock.pipeline.source.log_sources import SERVERS
from penstock.pipeline.source.options import WriteOptions
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
    """Rows that only the server, or the stream, could tell to be too large."""

    @abstractmethod
    def item(self, row: Row, key: str) -> tuple[Any, int]:
        """What a row becomes, and about how many bytes it has."""

    @abstractmethod
    def position(self) -> int | None:
        """What `send` may be told as `since`."""

    @abstractmethod
    def send(self, chunk: Chunk, key: str, since: int | None) -> int | None:
        """All of it, once; answers the position after it. With `since` it may have been sent before, after that."""

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
    """Every message has a key, by which the queue knows one that comes again."""

    rows_max = 1_000

    def __init__(self, url: str, queue: str, token: str | None) -> None:
        self._queue = queue
        self._client = _client(url, token)
        with ExitStack() as undo:
            undo.callback(self._client.close)
            _patiently(lambda: self._client.create_queue(queue, exist_ok=True))
            undo.pop_all()

    def item(self, row: Row, key: str) -> tuple[PushItem, int]:
        message = message_of(row, key)
        return message, len(message.payload)

    def position(self) -> None:
        return None

    def send(self, chunk: Chunk, key: str, since: int | None) -> None:
        """A queue may never have room for all of it at once: what does not fit is sent in ever smaller parts."""
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
                    # Whichever it was that was refused, the largest is no smaller.
                    waiting.pop(max(range(len(part)), key=lambda at: len(part[at].payload)))
                    self.left_out += 1
            except PenstockError as error:
                if not _passes(error) or time.monotonic() > deadline:
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
    """One that would try the same again for a while is of no use, where fewer messages would have found room."""
    if url.startswith(SERVERS):
        return connect(url, token=token, retry_for=0)
    where = url.removeprefix("sqlite:///")
    store = open_store(where)
    return Client(StoreTransport(Broker(store, clock=store.clock, limits=EMBEDDED), StoreStreams(where, 0), 0))


class StreamTarget(SinkTarget):
    """A chunk is one append with a key, looked for before it is sent a second time."""

    rows_max = 10_000
    record_bytes_max: int
    """What the stream takes."""

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
    """In a folder or a database."""

    def __init__(self, url: str, stream: str) -> None:
        self._stream = stream
        with ExitStack() as undo:
            self._streams = open_streams(url.removeprefix("sqlite:///"))
            undo.callback(self._streams.close)
            _patiently(self._create)
            self.record_bytes_max = self._streams.show(stream).options.record_bytes
            undo.pop_all()

    def _create(self) -> None:
        with suppress(StreamExists):  # With options of its own.
            self._streams.create(self._stream)

    def position(self) -> int:
        return self._streams.next_offset(self._stream)

    def append(self, chunk: Chunk, key: str, since: int | None) -> int:
        done = _patiently(lambda: append_once(self._streams, self._stream, key, chunk, since))
        return done.last + 1

    def close(self) -> None:
        self._streams.close()


class ServerStream(StreamTarget):
    """As Arrow over HTTP."""

    def __init__(self, url: str, stream: str, token: str | None) -> None:
        self._server = ServerClient(url, token, away_seconds=STALLED_SECONDS_MAX)
        self._path = f"/streams/{quote(stream, safe='')}"
        try:
            self._server.ask("GET", self._path)
        except ServerRefused as error:
            if error.status != 404:
                raise error.plain() from None
            self._ask("POST", "/streams", msgspec.json.encode({"name": stream}), {"Content-Type": JSON})
        self.record_bytes_max = self._ask("GET", self._path)["options"]["record_bytes"]

    def position(self) -> int:
        return int(self._ask("GET", self._path)["next"])

    def append(self, chunk: Chunk, key: str, since: int | None) -> int:
        path = f"{self._path}/records" + ("" if since is None else f"?since={since}")
        headers = {"Content-Type": ARROW, "Idempotency-Key": quote(key, safe=":")}
        return int(self._ask("POST", path, _arrow(chunk), headers)["last"]) + 1

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        try:
            answer, _ = self._server.ask(method, path, body, headers)
        except ServerRefused as error:
            raise error.plain() from None
        return msgspec.json.decode(answer, type=dict[str, Any])

    def close(self) -> None:
        """Nothing is kept open between calls."""


def _arrow(chunk: Sequence[Payload]) -> bytes:
    texts = [each.data.decode() for each in chunk if isinstance(each, NewRecord)]
    column = pa.array(texts, pa.string()) if texts else pa.array(chunk, pa.binary())
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([column], names=[COLUMN])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _patiently(do: Callable[[], T]) -> T:
    """A folder's stream has one writer among all processes, who lets go of it after a while."""
    deadline = time.monotonic() + STALLED_SECONDS_MAX
    while True:
        try:
            return do()
        except PenstockError as error:
            if not _passes(error) or time.monotonic() > deadline:
                raise
            _pause(error)


def _passes(error: PenstockError) -> bool:
    """What is sent has keys, so that it may be sent again though it may have arrived."""
    if isinstance(error, ServerFault):
        return error.status in PASSING
    return isinstance(error, TryLater | StoreBusy | StoreUnreachable | Unreachable)


def _pause(error: PenstockError) -> None:
    told_ms = error.retry_after_ms if isinstance(error, TryLater) else 0
    time.sleep(max(PAUSE_SECONDS, told_ms / 1000))
