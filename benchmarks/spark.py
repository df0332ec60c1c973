"""Reading a journal with Spark: by our source, from Parquet, as tuples, by DuckDB; and the whole pipeline, end to end.

Progress goes to stderr and the table to stdout. A complete run is kept in benchmarks/results, any other in
benchmarks/results/tmp.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import duckdb
from lib import machine
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.journal.drain import journal_folder
from penstock.journal.events import Kind, encode_events
from penstock.log.log import Log
from penstock.pipeline.lake import Lake
from penstock.pipeline.logs import FolderLog, FolderPlace
from penstock.pipeline.parts import parts_of
from penstock.pipeline.run import Pipeline
from penstock.pipeline.session import open_session
from penstock.pipeline.source import PenstockSource
from penstock.pipeline.tables import BRONZE

RESULTS = Path(__file__).parent / "results"
COMPLETE_EVENTS = 10_000_000
BATCH = 100
START_MS = 1_760_000_000_000
PLAIN = "offset bigint, kind string, queue string, id bigint, at timestamp, leased_at timestamp, attempts int"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=COMPLETE_EVENTS)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        results = run(folder, options.events, options.cores, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    complete = options.events >= COMPLETE_EVENTS
    out = RESULTS if complete else RESULTS / "tmp"
    out.mkdir(parents=True, exist_ok=True)
    (out / "spark.json").write_text(json.dumps(results, indent=1) + "\n")
    text = table(results)
    (out / "spark.md").write_text(text)
    print(text)
    return 0


def run(folder: Path, events: int, cores: int, rounds: int) -> dict[str, Any]:
    journal = journal_folder(folder / "penstock.db")
    say(f"{events:,} events")
    size = fill(journal, events)
    results: dict[str, Any] = {"machine": machine.facts(folder), "events": events, "journal_bytes": size}
    began = monotonic()
    spark = open_session(folder / "spark.log", master=f"local[{cores}]", memory="2g")
    spark.range(1).count()
    results["first_answer_s"] = round(monotonic() - began, 2)
    spark.dataSource.register(PenstockSource)
    spark.dataSource.register(TupleSource)
    lake = Lake(folder / "lake")
    say("pipeline")
    results["pipeline"] = pipeline(spark, journal, lake, events)
    results["reads"] = reads(spark, folder, lake, events, rounds)
    spark.stop()
    return results


def fill(journal: Path, events: int) -> int:
    """Messages of 200 bytes, pushed, leased and acked by the hundred, a few thousand a second, in four queues."""
    with Log.create(journal, "journal") as log:
        now, first, done = START_MS, 1, 0
        while done < events:
            records = []
            for _ in range(50):
                queue = b"queue-%d" % (first // BATCH % 4)
                number = first // BATCH % 4 + 1
                ids = range(first, first + BATCH)
                bodies = [b"%0200d" % each for each in ids]
                pushed = [(each, now, 0, 0, now, 0, 0, 0) for each in ids]
                leased = [(each, now, now + 7, now + 7, now + 30_007, 1, 0, 0) for each in ids]
                acked = [(each, now, now + 7, now + 7, 0, 1, 0, 0) for each in ids]
                records.append(encode_events(Kind.PUSHED, now, number, queue, 1, pushed, bodies=bodies))
                records.append(encode_events(Kind.LEASED, now + 7, number, queue, 1, leased))
                records.append(encode_events(Kind.ACKED, now + 25, number, queue, 1, acked))
                first += BATCH
                done += 3 * BATCH
                now += 30
            log.append_encoded(b"".join(records), list(map(len, records)))
        return sum(segment.bytes for segment in log.segments())


def pipeline(spark: SparkSession, journal: Path, lake: Lake, events: int) -> dict[str, Any]:
    began = monotonic()
    with Pipeline(spark, journal, lake) as running:
        steps = sum(1 for _ in running.steps())
    seconds = monotonic() - began
    return {"seconds": round(seconds, 1), "steps": steps, "events_s": round(events / seconds)}


def reads(spark: SparkSession, folder: Path, lake: Lake, events: int, rounds: int) -> dict[str, Any]:
    files = lake[BRONZE].files()

    def aggregate(frame: Any, body: bool) -> Callable[[], None]:
        what = "sum(length(body)) AS b" if body else "max(id) AS b"
        return lambda: frame.selectExpr("sum(id) AS a", what).collect()

    ours = spark.read.format("penstock")
    ways = {
        "source, with bodies": aggregate(ours.schema("id bigint, body binary").load(str(folder)), True),
        "Parquet, with bodies": aggregate(spark.read.parquet(*files), True),
        "source, 7 columns": whole(ours.schema(PLAIN).load(str(folder))),
        "Parquet, 7 columns": whole(spark.read.parquet(*files).selectExpr(*PLAIN_NAMES)),
        "DuckDB on the lake, with bodies": duck(files, "sum(octet_length(body))"),
        "tuples, with bodies": aggregate(
            spark.read.format("tuples").schema("id bigint, body binary").load(str(folder)), True
        ),
    }
    found = {}
    for name, way in ways.items():
        say(name)
        best = min(timed(way) for _ in range(1 if name.startswith("tuples") else rounds))
        found[name] = {"seconds": round(best, 2), "events_s": round(events / best)}
    return found


PLAIN_NAMES = [each.split()[0] for each in PLAIN.split(", ")]


def whole(frame: Any) -> Callable[[], None]:
    """Every column is used."""
    return lambda: frame.selectExpr(*(f"max({name})" for name in PLAIN_NAMES)).collect()


def duck(files: list[str], what: str) -> Callable[[], None]:
    def ask() -> None:
        with duckdb.connect() as db:
            db.execute(f"SELECT sum(id), {what} FROM read_parquet(?)", [files]).fetchall()

    return ask


class TupleSource(DataSource):
    """The same rows, handed over one by one, as a source without Arrow would."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def reader(self, schema: Any) -> DataSourceReader:
        return TupleReader(self.options["path"])


class TupleReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        with closing(self._open()) as log:
            return [InputPartition(part) for part in parts_of(log.segments(), 0, log.next_offset, 2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        with closing(self._open()) as log:
            for batch in log.read(partition.value, ["id", "body"]):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _open(self) -> FolderLog:
        return FolderPlace(str(journal_folder(Path(self._path) / "penstock.db"))).open()


def timed(way: Callable[[], None]) -> float:
    began = monotonic()
    way()
    return monotonic() - began


def table(results: dict[str, Any]) -> str:
    lines = [f"{results['events']:,} events, {results['journal_bytes'] / 1e6:,.0f} MB of journal", ""]
    lines += ["| way | seconds | M events/s |", "|---|---|---|"]
    rows = {**results["reads"], "pipeline: journal to gold": results["pipeline"]}
    for name, row in rows.items():
        lines.append(f"| {name} | {row['seconds']} | {row['events_s'] / 1e6:.2f} |")
    return "\n".join(lines) + "\n"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
