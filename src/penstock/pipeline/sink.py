"""Rows into a queue, each once, whatever is killed and however often Spark tries again.

Tasks only stage: they write rows to files. The driver then decides which files a batch consists of, writes that down,
and pushes them in that order, every message with a key made from its place. A batch that comes again finds the
decision of the first time, and goes on where that one had come to.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock import connect
from penstock.errors import Conflict, InvalidInput, TryLater
from penstock.log.files import DISK, replace
from penstock.model import Content, NewMessage
from penstock.pipeline.options import WriteOptions

COLUMNS = {
    "payload": "string or binary: the message",
    "content": "string: bytes, text or json; else by the payload's type",
    "priority": "int",
    "delay_ms": "bigint",
    "ttl_ms": "bigint",
    "key": "string: idempotency key; else one is made",
    "headers": "map<string, string>",
}
CHUNK_MESSAGES = 1_000
CHUNK_BYTES = 4 << 20
STALLED_SECONDS_MAX = 600.0
BATCHES_REMEMBERED = 16
RUN_LETTERS_MAX = 250
_MANIFEST = "manifest"

Advance = Callable[[int], None]
Messages = list[WriterCommitMessage | None]


class Manifest(Struct):
    """What a batch consists of, once decided, and how far its push has come."""

    queue: str
    files: list[str]
    rows: int
    done: int = 0

    @property
    def finished(self) -> bool:
        return self.done >= self.rows


@dataclass
class Staged(WriterCommitMessage):
    file: str | None
    rows: int
    query: str | None


class _Writing:
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidInput("a queue is not overwritten", field="mode", hint='mode("append"), or purge it before')
        check_columns(schema.names)
        self.options = options
        self.run = options.name or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        file, rows = stage(iterator, self.options.staging)
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return Staged(file, rows, query)


class QueueWriter(_Writing, DataSourceArrowWriter):
    def commit(self, messages: Messages) -> None:
        batch = self._batch()
        batch.publish(_staged(messages))
        self._forget_unnamed(batch)

    def abort(self, messages: Messages) -> None:
        batch = self._batch()
        self._forget_unnamed(batch)
        batch.discard(_staged(messages))

    def _batch(self) -> Batch:
        return Batch(self.options, self.run)

    def _forget_unnamed(self, batch: Batch) -> None:
        """Nobody can ask for the same write again."""
        if self.options.name is None:
            batch.forget()


class QueueStreamWriter(_Writing, DataSourceStreamArrowWriter):
    def commit(self, messages: Messages, batchId: int) -> None:
        self._batch(messages, batchId).publish(_staged(messages))

    def abort(self, messages: Messages, batchId: int) -> None:
        self._batch(messages, batchId).discard(_staged(messages))

    def _batch(self, messages: Messages, number: int) -> Batch:
        query = next((each.query for each in messages if isinstance(each, Staged) and each.query), None)
        return Batch(self.options, self.options.name or query or self.run, number)


def _staged(messages: Messages) -> list[Staged]:
    return [each for each in messages if isinstance(each, Staged) and each.file is not None]


def check_columns(names: Iterable[str]) -> None:
    names = list(names)
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or "payload" not in names:
        text = f"there is no column {unknown[0]!r}" if unknown else "the column payload is missing"
        hint = "columns are " + "; ".join(f"{name}: {what}" for name, what in COLUMNS.items())
        raise InvalidInput(text, field="schema", hint=hint)


def stage(batches: Iterable[pa.RecordBatch], folder: Path) -> tuple[str | None, int]:
    """One file of these rows, on disk, and how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{uuid.uuid4().hex}.arrow"
    rows = 0
    writer: pa.RecordBatchStreamWriter | None = None
    with (folder / name).open("wb") as file:
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(file, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
        file.flush()
        os.fsync(file.fileno())
    if rows == 0:
        (folder / name).unlink()
        return None, 0
    return name, rows


class Batch:
    """One batch of one run on its way into a queue."""

    def __init__(self, options: WriteOptions, run: str, batch: int = 0) -> None:
        self._options = options
        name = "run-" + quote(run, safe="")
        if len(name) > RUN_LETTERS_MAX:
            raise InvalidInput("the name of this write is too long", field="name", hint="some 200 letters are enough")
        self._key = f"{run}:{batch}"
        self._batch = batch
        self._runs = options.staging / name
        self._folder = self._runs / f"{batch:020}"

    def manifest(self) -> Manifest | None:
        found = self._decided()
        if found is not None and found.queue != self._options.queue:
            raise Conflict(
                f"a write of this name went into the queue {found.queue!r}", hint="give this one a name of its own"
            )
        return found

    def publish(self, staged: Sequence[Staged]) -> None:
        if staged or self.manifest() is not None:
            self.decide([each.file for each in staged if each.file], sum(each.rows for each in staged))
            self.push()

    def discard(self, staged: Sequence[Staged]) -> None:
        """What was staged for nothing. Spark says so after a failed push, too: what was decided on is still wanted."""
        decided = self._decided()
        self._remove({each.file for each in staged if each.file} - set(decided.files if decided else ()))

    def forget(self) -> None:
        shutil.rmtree(self._runs, ignore_errors=True)

    def decide(self, files: Sequence[str], rows: int) -> Manifest:
        """These files it is, unless it was decided before."""
        decided = self.manifest()
        if decided is not None:
            self._remove(set(files) - set(decided.files))
            return decided
        self._folder.mkdir(parents=True, exist_ok=True)
        DISK.sync_folder(self._options.staging)
        decided = Manifest(self._options.queue, sorted(files), rows)
        self._save(decided)
        return decided

    def push(self, *, rate: float | None = None, advance: Advance = lambda count: None) -> Manifest:
        """All that is not yet in the queue. At most `rate` messages a second."""
        manifest = self.manifest()
        assert manifest is not None
        if not manifest.finished:
            self._push_rest(manifest, rate, advance)
        self._tidy(manifest)
        return manifest

    def _push_rest(self, manifest: Manifest, rate: float | None, advance: Advance) -> None:
        with connect(self._options.url, token=self._options.token) as client:
            client.create_queue(self._options.queue, exist_ok=True)
            began, sent = time.monotonic(), 0
            for chunk in self._chunks(manifest):
                self._push_chunk(client, chunk)
                manifest.done += len(chunk)
                sent += len(chunk)
                self._save(manifest)
                advance(len(chunk))
                if rate is not None:
                    time.sleep(max(0.0, began + sent / rate - time.monotonic()))

    def _chunks(self, manifest: Manifest) -> Iterator[list[NewMessage]]:
        chunk: list[NewMessage] = []
        size = number = 0
        for file in manifest.files:
            with pa.ipc.open_stream(self._options.staging / file) as reader:
                for batch in reader:
                    if number + batch.num_rows <= manifest.done:
                        number += batch.num_rows
                        continue
                    for row in batch.to_pylist():
                        number += 1
                        if number <= manifest.done:
                            continue
                        message = message_of(row, f"{self._key}:{number}")
                        if chunk and (len(chunk) >= CHUNK_MESSAGES or size + len(message.payload) > CHUNK_BYTES):
                            yield chunk
                            chunk, size = [], 0
                        chunk.append(message)
                        size += len(message.payload)
        if chunk:
            yield chunk

    def _push_chunk(self, client: Any, chunk: list[NewMessage]) -> None:
        """A queue that is full, or a server under pressure, makes it slower, not fail."""
        deadline = time.monotonic() + STALLED_SECONDS_MAX
        while True:
            try:
                client.transport.push(self._options.queue, chunk)
                return
            except TryLater as error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(max(0.05, error.retry_after_ms / 1000))

    def _decided(self) -> Manifest | None:
        try:
            return msgspec.json.decode((self._folder / _MANIFEST).read_bytes(), type=Manifest)
        except FileNotFoundError:
            return None

    def _save(self, manifest: Manifest) -> None:
        replace(DISK, self._folder / _MANIFEST, msgspec.json.encode(manifest))

    def _tidy(self, manifest: Manifest) -> None:
        self._remove(manifest.files)
        for old in self._runs.iterdir():
            if old.name < f"{max(0, self._batch - BATCHES_REMEMBERED):020}":
                shutil.rmtree(old, ignore_errors=True)

    def _remove(self, files: Iterable[str]) -> None:
        for file in files:
            (self._options.staging / file).unlink(missing_ok=True)


def message_of(row: dict[str, Any], key: str) -> NewMessage:
    payload = row["payload"]
    if payload is None:
        raise InvalidInput("a payload is null", field="payload", hint="leave such rows out")
    told = row.get("content")
    content = Content(told) if told else Content.TEXT if isinstance(payload, str) else Content.BYTES
    headers = row.get("headers")
    return NewMessage(
        payload=payload.encode() if isinstance(payload, str) else payload,
        content=content,
        priority=row.get("priority") or 0,
        delay_ms=row.get("delay_ms"),
        ttl_ms=row.get("ttl_ms"),
        key=row.get("key") or key,
        headers=None if headers is None else dict(headers),
    )
