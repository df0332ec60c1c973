"""Measures appends against raw write + fsync, reads against reading the file, and the effect of the log's size."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from penstock.log.aio import AsyncStreams
from penstock.log.arrow import batches
from penstock.log.files import Files
from penstock.log.model import StreamOptions
from penstock.log.reader import LogReader
from penstock.log.record import HEADER_BYTES, encode
from penstock.log.streams import FileStreams
from penstock.log.writer import Log

PRODUCERS = 64
# A record takes 64 bytes with its header, so fifty million take 3.2 GB.
SMALL_BYTES = 40
BUILD_RECORDS = 10_000
READ_CHUNK = 1 << 20
TURN_STEPS = 20
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    rounds: int
    round_s: float
    read_bytes: int
    sizes: tuple[int, ...]
    reads: int


DEFAULT = Plan(rounds=5, round_s=0.5, read_bytes=512 << 20, sizes=(10_000, 1_000_000, 50_000_000), reads=2_000)
QUICK = Plan(rounds=3, round_s=0.3, read_bytes=128 << 20, sizes=(10_000, 1_000_000), reads=500)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def folder_in(root: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class RawFile:
    """The physical limit: writes and syncs the same bytes."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self._data = data
        self._at = 0

    def append(self) -> None:
        os.pwrite(self._fd, self._data, self._at)
        os.fdatasync(self._fd)
        self._at += len(self._data)

    def close(self) -> None:
        os.close(self._fd)


def rate(step: Callable[[], Any], records: int, seconds: float) -> float:
    """Return records per second. Dirty pages of earlier steps are synced before the clock starts."""
    os.sync()
    started, count = perf_counter(), 0
    while perf_counter() - started < seconds:
        step()
        count += records
    return count / (perf_counter() - started)


def appends(plan: Plan, root: Path) -> list[Row]:
    rows = []
    for size in (200, 1024):
        for batch in (1, 100, 1000):
            say(f"append: {size} bytes, batches of {batch}")
            payloads = [os.urandom(size) for _ in range(batch)]
            with folder_in(root) as folder, Log.create(folder / "log", "s") as log:
                raw = RawFile(folder / "raw", encode(payloads, 0)[0])
                ours, limit = [], []
                for _ in range(plan.rounds):
                    two = _taking_turns(lambda: log.append(payloads), raw.append, plan.round_s)  # noqa: B023
                    ours.append(batch * two[0])
                    limit.append(batch * two[1])
                raw.close()
            rows.append(_row(size, batch, ours, limit))
    return rows


def _taking_turns(one: Callable[[], Any], other: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Return the steps per second of both. They alternate quickly, because the disk's speed drifts within seconds."""
    took, steps = [0.0, 0.0], 0
    while min(took) < seconds:
        for which, step in enumerate((one, other)):
            os.sync()
            step()
            started = perf_counter()
            for _ in range(TURN_STEPS):
                step()
            took[which] += perf_counter() - started
        steps += TURN_STEPS
    return steps / took[0], steps / took[1]


def _row(size: int, batch: int, ours: list[float], limit: list[float]) -> Row:
    return {
        "record_bytes": size,
        "batch": batch,
        "records_per_s": round(median(ours)),
        "raw_per_s": round(median(limit)),
        "share": round(median(one / other for one, other in zip(ours, limit, strict=True)), 3),
        "rounds": [round(each) for each in ours],
        "raw_rounds": [round(each) for each in limit],
    }


def crowd(plan: Plan, root: Path) -> list[Row]:
    """Compare single records of many producers with one raw write + fsync of as many records."""
    rows = []
    for size in (200, 1024):
        payloads = [os.urandom(size)]
        group = encode(payloads * PRODUCERS, 0)[0]
        for how, produce in (("threads", _by_threads), ("coroutines", _by_coroutines)):
            say(f"{PRODUCERS} producers ({how}): {size} bytes")
            with folder_in(root) as folder:
                streams = FileStreams(folder / "streams")
                streams.create("s")
                raw, single = RawFile(folder / "raw", group), RawFile(folder / "one", encode(payloads, 0)[0])
                ours, limit, alone = [], [], []
                for _ in range(plan.rounds):
                    limit.append(rate(raw.append, PRODUCERS, plan.round_s))
                    alone.append(rate(single.append, 1, plan.round_s))
                    os.sync()
                    ours.append(produce(streams, payloads, plan.round_s))
                streams.close()
                raw.close()
                single.close()
            row = _row(size, 1, ours, limit) | {"producers": PRODUCERS, "how": how}
            rows.append(row | {"raw_single_per_s": round(median(alone))})
    return rows


def _by_threads(streams: FileStreams, payloads: list[bytes], seconds: float) -> float:
    counts: list[int] = []
    gate = threading.Barrier(PRODUCERS + 1)

    def produce() -> None:
        count = 0
        gate.wait()
        deadline = perf_counter() + seconds
        while perf_counter() < deadline:
            streams.append("s", payloads)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=produce) for _ in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    gate.wait()
    started = perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (perf_counter() - started)


def _by_coroutines(streams: FileStreams, payloads: list[bytes], seconds: float) -> float:
    async def main() -> float:
        both = AsyncStreams(streams)
        streams.append("s", payloads)
        started = perf_counter()

        async def produce() -> int:
            count = 0
            while perf_counter() - started < seconds:
                await both.append("s", payloads)
                count += 1
            return count

        total = sum(await asyncio.gather(*(produce() for _ in range(PRODUCERS))))
        took = perf_counter() - started
        await both.close()
        return total / took

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


class Unsynced(Files):
    """Files without fsync, to build large logs quickly."""

    def sync(self, fd: int) -> None:
        pass


def build(folder: Path, records: int, size: int = SMALL_BYTES) -> None:
    """Build a log in which record n contains n modulo BUILD_RECORDS, so that reads can be checked."""
    payloads = [b"%d " % number + b"x" * (size - len(b"%d " % number)) for number in range(BUILD_RECORDS)]
    data, sizes = encode(payloads, 1_700_000_000_000)
    part = min(BUILD_RECORDS, (16 << 20) // (size + HEADER_BYTES))
    with Log.create(folder, "s", StreamOptions(), files=Unsynced()) as log:
        while log.next_offset < records:
            start = log.next_offset % BUILD_RECORDS
            count = min(part, BUILD_RECORDS - start, records - log.next_offset)
            low, high = start * (size + HEADER_BYTES), (start + count) * (size + HEADER_BYTES)
            log.append_encoded(data[low:high], sizes[start : start + count])


def sequential(plan: Plan, root: Path) -> list[Row]:
    rows = []
    for size in (200, 1024):
        say(f"sequential read: {size} bytes")
        with folder_in(root) as folder:
            records = plan.read_bytes // (size + HEADER_BYTES)
            build(folder / "log", records, size)
            os.sync()
            with LogReader(folder / "log") as log:
                arrow, whole, paged = [], [], []
                total = sum(segment.bytes for segment in log.segments())
                for _ in range(max(3, plan.rounds // 2)):
                    whole.append(total / _timed(lambda: _read_files(log)) / 1e9)
                    arrow.append(total / _timed(lambda: _read_arrow(log, records)) / 1e9)  # noqa: B023
                paged.append(total / _timed(lambda: _read_pages(log, records)) / 1e9)  # noqa: B023
        rows.append(
            {
                "record_bytes": size,
                "records": records,
                "arrow_gb_per_s": round(median(arrow), 3),
                "file_gb_per_s": round(median(whole), 3),
                "share": round(median(arrow) / median(whole), 3),
                "arrow_rows_per_s": round(median(arrow) * 1e9 / (size + HEADER_BYTES)),
                "pages_rows_per_s": round(median(paged) * 1e9 / (size + HEADER_BYTES)),
            }
        )
    return rows


def _timed(step: Callable[[], None]) -> float:
    started = perf_counter()
    step()
    return perf_counter() - started


def _read_files(log: LogReader) -> None:
    buffer = bytearray(READ_CHUNK)
    for segment in log.segments():
        assert segment.path is not None
        with open(segment.path, "rb", buffering=0) as file:  # noqa: PTH123
            while file.readinto(buffer):
                pass


def _read_arrow(log: LogReader, records: int) -> None:
    assert sum(batch.num_rows for batch in batches(log, 0)) == records


def _read_pages(log: LogReader, records: int) -> None:
    at = 0
    while at < records:
        at = log.read(at, 10_000, 8 << 20).next


def scale(plan: Plan, root: Path) -> list[Row]:
    """Measure opening, random reads and the memory of a reader in logs of growing size."""
    rows = []
    for records in plan.sizes:
        say(f"building {records:,} records")
        folder = root / f"scale-{records}"
        _timed(lambda: build(folder, records))  # noqa: B023
        os.sync()
        rows.append({"records": records, "bytes": sum(path.stat().st_size for path in folder.iterdir())})
    logs = [LogReader(root / f"scale-{records}") for records in plan.sizes]
    took: list[list[float]] = [[] for _ in logs]
    chance = random.Random(5)
    for number in range(plan.reads * 2):
        for log, each in zip(logs, took, strict=True):
            offset = chance.randrange(log.next_offset)
            started = perf_counter()
            record = log.read(offset, 1).records[0]
            each.append((perf_counter() - started) * 1e6)
            assert int(record.data.split()[0]) == offset % BUILD_RECORDS
        if number == plan.reads:
            # The first half of the reads also loaded pages and checked segment indexes, so it is reported separately.
            first, took = took, [[] for _ in logs]
    for row, log, cold, each in zip(rows, logs, first, took, strict=True):
        row["read_us"] = round(median(each), 2)
        row["read_p99_us"] = round(sorted(each)[int(len(each) * 0.99)], 1)
        row["first_reads_max_ms"] = round(max(cold) / 1000, 2)
        log.close()
        row |= _opened(root / f"scale-{row['records']}", plan.reads)
    return rows


def _opened(folder: Path, reads: int) -> Row:
    script = Path(__file__).with_name("opened.py")
    ran = subprocess.run(
        [sys.executable, str(script), str(folder), str(reads)], check=True, capture_output=True, text=True
    )
    found: Row = json.loads(ran.stdout)
    return found
