"""Runs measurements in a child process pinned to some cores, which prints its result as one line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import duckdb
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.journal.drainer import journal_folder
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.run import Pipeline
from penstock.pipeline.runtime.jar import RULE, RULES_LEFT_OUT
from penstock.pipeline.runtime.session import open_session
from penstock.pipeline.source.data_source import PenstockSource

from .forms import FORMS, ONE_BY_ONE, READY_MADE, TUPLES
from .history import history

PLAIN = "queue string, kind string, at timestamp, id bigint"
WITH_BODIES = f"{PLAIN}, body binary"
LOOK_SECONDS = 0.2
Row = dict[str, Any]


def in_child(cores: int, **what: Any) -> Any:
    """Run a measurement in a child process and return its result. The child and its own children share these cores."""
    ran = subprocess.run(
        [sys.executable, "-m", "lakes.work", json.dumps({"cores": cores, **what})],
        cwd=Path(__file__).parents[1],
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(ran.stdout)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    what, cores, folder = arguments.pop("what"), arguments.pop("cores"), Path(arguments.pop("folder"))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    spark = open_session(folder / "spark.log", master=f"local[{cores}]", memory=arguments.pop("memory", "2g"))
    found = {"reads": reads, "pipeline": pipeline, "history": history}[what](spark, folder, **arguments)
    spark.stop()
    print(json.dumps(found))


def pipeline(spark: SparkSession, folder: Path, lake: str) -> Row:
    """Run the pipeline from the journal to gold with an empty lake; return its duration and its peak memory."""
    spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()  # Starts Spark and a Python worker.
    events, began = 0, monotonic()
    with peak_bytes() as peak, Pipeline(spark, journal_folder(folder / "penstock.db"), Lake(folder / lake)) as running:
        steps = 0
        for step in running.steps():
            events, steps = events + step.events, steps + 1
    seconds = monotonic() - began
    return {"seconds": round(seconds, 1), "steps": steps, "events_s": round(events / seconds), **peak.as_row()}


class peak_bytes:
    """Samples the peak resident memory of this process, its JVM and the Python workers."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._over = Event()
        self._thread = Thread(target=self._sample)

    def __enter__(self) -> peak_bytes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._over.wait(LOOK_SECONDS):
            now = {"driver": me.memory_info().rss, "java": 0, "workers": 0}
            for child in me.children(recursive=True):
                try:
                    now["java" if child.name() == "java" else "workers"] += child.memory_info().rss
                except psutil.Error:
                    continue
            now["all"] = sum(now.values())
            self._most = {name: max(value, self._most.get(name, 0)) for name, value in now.items()}

    def as_row(self) -> Row:
        return {f"{name}_mb_peak": round(value / 1e6) for name, value in self._most.items()}


def reads(spark: SparkSession, folder: Path, lake: str, rounds: int, only: list[str]) -> list[Row]:
    """Run all ways of reading in turns, and return the median of each."""
    spark.dataSource.register(PenstockSource)
    for each in FORMS:
        spark.dataSource.register(each)
    files = Lake(folder / lake)[BRONZE].files()
    ways = {name: way for name, way in _ways(spark, folder, files).items() if not only or name in only}
    events = spark.read.parquet(*files).count()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # The first round is a warm-up.
        for name, way in ways.items():
            if "tuples" in name and number > 1:
                continue  # These take long, so one round is enough.
            began = monotonic()
            way()
            taken[name].append(monotonic() - began)
    return [_row(name, times[1:] or times, events) for name, times in taken.items()]


def _row(name: str, times: list[float], events: int) -> Row:
    middle = sorted(times)[len(times) // 2]
    return {
        "way": name,
        "seconds": round(middle, 2),
        "events_s": round(events / middle),
        "rounds": [round(each, 2) for each in times],
    }


def _ways(spark: SparkSession, folder: Path, files: list[str]) -> dict[str, Callable[[], object]]:
    def source(columns: str, form: str = "penstock") -> DataFrame:
        return spark.read.format(form).schema(columns).load(str(folder))

    def parquet(columns: str) -> DataFrame:
        return spark.read.parquet(*files).select(*[each.split()[0] for each in columns.split(", ")])

    def in_python(ask: Callable[[], object]) -> Callable[[], object]:
        """Disable the JVM reader, as in a session without its jar."""

        def run_query() -> object:
            spark.conf.set(RULES_LEFT_OUT, RULE)
            try:
                return ask()
            finally:
                spark.conf.unset(RULES_LEFT_OUT)

        return run_query

    return {
        "source, bodies, summed": summed(source(WITH_BODIES)),
        "source in Python, bodies, summed": in_python(summed(source(WITH_BODIES))),
        "Parquet, bodies, summed": summed(parquet(WITH_BODIES)),
        "source, no bodies, summed": summed(source(PLAIN)),
        "source in Python, no bodies, summed": in_python(summed(source(PLAIN))),
        "Parquet, no bodies, summed": summed(parquet(PLAIN)),
        "source, bodies, only read": only_read(source(WITH_BODIES)),
        "Parquet, bodies, only read": only_read(parquet(WITH_BODIES)),
        "source, no bodies, only read": only_read(source(PLAIN)),
        "Parquet, no bodies, only read": only_read(parquet(PLAIN)),
        "DuckDB on the lake, bodies, summed": duck(files),
        "ready-made batches, bodies, summed": summed(source(WITH_BODIES, READY_MADE)),
        "ready-made batches, no bodies, summed": summed(source(PLAIN, READY_MADE)),
        "columns as tuples, bodies, summed": summed(source(WITH_BODIES, TUPLES)),
        "events as tuples, bodies, summed": summed(source(WITH_BODIES, ONE_BY_ONE)),
    }


def summed(frame: DataFrame) -> Callable[[], object]:
    """Return a function that aggregates every column by queue, kind and minute.

    Each call plans the query again, because a plan that has run reuses its shuffle files.
    """
    more = [F.sum(F.length("body"))] if "body" in frame.columns else []

    def ask() -> object:
        minutes = frame.groupBy("queue", "kind", F.date_trunc("minute", "at"))
        return minutes.agg(F.count("*"), F.max("id"), *more).collect()

    return ask


def only_read(frame: DataFrame) -> Callable[[], object]:
    """Return a function that reads all rows in Spark and discards them."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def duck(files: list[str]) -> Callable[[], object]:
    query = """SELECT queue, kind, date_trunc('minute', "at"), count(*), max(id), sum(octet_length(body))
        FROM read_parquet(?) GROUP BY ALL"""

    def ask() -> object:
        with duckdb.connect(config={"threads": len(os.sched_getaffinity(0))}) as db:
            return db.execute(query, [files]).fetchall()

    return ask


if __name__ == "__main__":
    main()
