"""Stages rows and sends them to a queue or a stream exactly once, despite crashes and Spark's retries.

Tasks only write rows to files. The driver then records in a manifest which files make up a batch, and sends them in
that order, each chunk with an idempotency key made from its position. A repeated batch finds the manifest and continues
where it stopped.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import quote

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.errors import Conflict, PayloadTooLarge
from penstock.pipeline.sink.rows import Row, checked_rows, rows_in
from penstock.pipeline.sink.staging_area import StagingArea, area_of
from penstock.pipeline.sink.targets import Chunk, SinkTarget, target_of
from penstock.pipeline.source.options import WriteOptions, check_write_name

BATCHES_REMEMBERED = 16
# A file that belongs to no manifest for so long was left behind by a killed task.
STALE_SECONDS = 7 * 86_400
# With a rate limit, each push covers this much time.
RATED_SECONDS = 0.1
_MANIFEST = "manifest"
_STAGED = ".arrow"

Advance = Callable[[int], None]


class StagedFiles(Struct):
    """The manifest of a batch: its files and its progress."""

    into: str
    files: list[str]
    """Files in sending order."""
    rows: int
    digest: str | None = None
    """Order-independent digest of all rows; older releases stored none."""
    done: int = 0
    since: int | None = None
    """For a stream, the offset from which to search for a chunk that may have been sent already."""
    left_out: int = 0
    """Rows, among those done, that were too large for the server or the stream."""

    @property
    def finished(self) -> bool:
        return self.done >= self.rows


class Staged(Struct, frozen=True):
    """The file that a task has staged."""

    file: str | None
    """File name; None if there were no rows."""
    rows: int
    digest: str


class RowsDigest:
    """An order-independent digest of rows, because Spark may distribute the same rows over other tasks."""

    def __init__(self, digests: Iterable[str] = ()) -> None:
        self._sum = sum(int(each, 16) for each in digests)

    def add(self, row: Row) -> None:
        """Add a row as it would be sent: null and missing columns are the same."""
        given = {name: value for name, value in row.items() if value is not None}
        if isinstance(given.get("headers"), list):  # A map has no order.
            given["headers"] = dict(given["headers"])
        self._sum += int.from_bytes(hashlib.sha256(_ordered.encode(given)).digest())

    def __str__(self) -> str:
        return f"{self._sum % 2**256:064x}"


_ordered = msgspec.msgpack.Encoder(order="deterministic", enc_hook=str)


def stage(batches: Iterable[pa.RecordBatch], options: WriteOptions) -> Staged:
    """Validate these rows and write them to one durable file."""
    area, name = area_of(options.staging), f"{uuid.uuid4().hex}{_STAGED}"
    try:
        rows, digest = _write(area, name, batches, stream=options.stream is not None)
    except BaseException:
        area.remove([name])
        raise
    if rows == 0:
        area.remove([name])
    return Staged(name if rows else None, rows, digest)


def _write(area: StagingArea, name: str, batches: Iterable[pa.RecordBatch], *, stream: bool) -> tuple[int, str]:
    rows, digest = 0, RowsDigest()
    writer: pa.RecordBatchStreamWriter | None = None
    with area.create(name) as file:
        for batch in batches:
            for row in checked_rows(batch, stream=stream):
                digest.add(row)
            if writer is None:
                writer = pa.ipc.new_stream(file, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
    return rows, str(digest)


class Batch:
    """One batch of a run."""

    def __init__(self, options: WriteOptions, run: str, batch: int = 0) -> None:
        self._options = options
        name = "run-" + quote(check_write_name(run), safe="")
        self._key = f"{run}:{batch}"
        self._batch = batch
        self._area = area_of(options.staging)
        self._runs = name
        self._manifest = f"{name}/{batch:020}/{_MANIFEST}"

    def manifest(self) -> StagedFiles | None:
        found = self._decided()
        # Manifests of older releases lack the store's location.
        if found is not None and found.into not in (self._options.into, self._options.kind_and_name):
            raise Conflict(f"a write of this name went into the {found.into}", hint="use another name for this write")
        return found

    def publish(self, staged: Sequence[Staged], *, checked: bool = False) -> None:
        """Send these rows; if the batch has a manifest, finish that one instead.

        With `checked`, raise if the manifest has other rows. Micro-batches are not checked: Spark recomputes them from
        the same input, and differences (such as a random id) do not make another write.
        """
        if not any(each.rows for each in staged) and self.manifest() is None:
            return
        decided = self.decide(staged)
        before = decided.left_out
        left_out = self.send().left_out - before
        if left_out:
            # A retry finds the batch done, so a streaming query can continue without these rows.
            what = "messages" if self._options.queue is not None else "records"
            text = f"{left_out} {what} were too large for the {self._options.into}; all others were written"
            raise PayloadTooLarge(text, field="payload")
        if checked:
            self._check_same(decided, staged)

    def _check_same(self, decided: StagedFiles, staged: Sequence[Staged]) -> None:
        rows = sum(each.rows for each in staged)
        digest = str(RowsDigest(each.digest for each in staged))
        if rows != decided.rows or decided.digest not in (None, digest):
            raise Conflict(
                f"an earlier write of this name added {decided.rows} other rows; none of these {rows} were added",
                hint="use another name for this write",
            )

    def discard(self, staged: Iterable[Staged]) -> None:
        """Remove staged files that are not needed.

        Spark also calls this after a failed push, so keep the files in the manifest.
        """
        decided = self._decided()
        files = {each.file for each in staged if each.file is not None}
        self._area.remove(files.difference(decided.files if decided else ()))

    def forget(self) -> None:
        self._area.remove_folder(self._runs)

    def decide(self, staged: Sequence[Staged]) -> StagedFiles:
        """Return the existing manifest, or create one from these files in their order."""
        files = [each.file for each in staged if each.file is not None]
        decided = self.manifest()
        if decided is not None:
            self._area.remove(set(files) - set(decided.files))
            return decided
        digest = str(RowsDigest(each.digest for each in staged))
        decided = StagedFiles(self._options.into, files, sum(each.rows for each in staged), digest)
        self._save(decided)
        return decided

    def send(self, *, rate: float | None = None, advance: Advance = lambda count: None) -> StagedFiles:
        """Send the remaining rows, at most `rate` messages per second. Streams have no rate, because their chunks must
        be split the same way each time."""
        manifest = self.manifest()
        assert manifest is not None
        if not manifest.finished:
            with target_of(self._options) as target:
                self._send_rest(target, manifest, rate, advance)
        self._tidy(manifest)
        return manifest

    def _send_rest(self, target: SinkTarget, manifest: StagedFiles, rate: float | None, advance: Advance) -> None:
        if manifest.since is None:
            manifest.since = target.position()
            self._save(manifest)
        began, sent = time.monotonic(), 0
        rows_max = target.rows_max if rate is None else max(1, min(target.rows_max, int(rate * RATED_SECONDS)))
        for chunk in self._chunks(target, manifest, rows_max):
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            before = target.left_out
            manifest.since = target.send(chunk, f"{self._key}:{manifest.done}", manifest.since)
            manifest.done += len(chunk)
            manifest.left_out += target.left_out - before
            sent += len(chunk)
            self._save(manifest)
            advance(len(chunk))

    def _chunks(self, target: SinkTarget, manifest: StagedFiles, rows_max: int) -> Iterator[Chunk]:
        """Yield the remaining chunks, always split the same way from a given row, so that repeats are recognized."""
        chunk: Chunk = []
        size = 0
        for number, row in self._rows(manifest):
            item, weight = target.item(row, f"{self._key}:{number}")
            if chunk and (len(chunk) >= rows_max or size + weight > target.bytes_max):
                yield chunk
                chunk, size = [], 0
            chunk.append(item)
            size += weight
        if chunk:
            yield chunk

    def _rows(self, manifest: StagedFiles) -> Iterator[tuple[int, Row]]:
        number = 0
        for file in manifest.files:
            with pa.ipc.open_stream(self._area.open(file)) as reader:
                for batch in reader:
                    skip = min(batch.num_rows, max(0, manifest.done - number))
                    number += skip
                    for row in rows_in(batch, skip):
                        number += 1
                        yield number, row

    def _decided(self) -> StagedFiles | None:
        found = self._area.read(self._manifest)
        return None if found is None else msgspec.json.decode(found, type=StagedFiles)

    def _save(self, manifest: StagedFiles) -> None:
        self._area.replace(self._manifest, msgspec.json.encode(manifest))

    def _tidy(self, manifest: StagedFiles) -> None:
        self._area.remove(manifest.files)
        for old in self._area.folders(self._runs):
            if old < f"{max(0, self._batch - BATCHES_REMEMBERED):020}":
                self._area.remove_folder(f"{self._runs}/{old}")
        self._remove_stale()

    def _remove_stale(self) -> None:
        ages = self._area.ages()
        stale = {name for name, age in ages.items() if name.endswith(_STAGED) and age > STALE_SECONDS}
        if stale:
            manifests = [self._area.read(name) for name in ages if name.endswith(f"/{_MANIFEST}")]
            for found in manifests:
                if found is not None:
                    stale -= set(msgspec.json.decode(found, type=StagedFiles).files)
            self._area.remove(stale)
