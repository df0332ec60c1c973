"""From a command to its first answer: a bare Spark session, `pipeline sql` and `pipeline run --once`, cold and warm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from penstock.pipeline.session import SETTLED_SECONDS

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
BARE = """from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").getOrCreate()
print(spark.range(10).selectExpr("sum(id)").collect(), flush=True)"""
ARCHIVE_SECONDS_MAX = 120
Row = dict[str, Any]


def start(folder: Path, rounds: int) -> list[Row]:
    """On a small journal, which `run` brings into a new lake each time. All have the same Java and Python."""
    from penstock.pipeline.java import find_java

    java = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    asked = [PENSTOCK, "pipeline", "sql", "SELECT sum(pushed) FROM gold.queues", "--json", "--data", str(folder)]
    run = [PENSTOCK, "pipeline", "run", "--once", "--json", "--data", str(folder), "--lake"]
    warm = folder / "cache-warm"
    _warm_up([*run, str(folder / "lake")], warm)
    taken: dict[str, list[float]] = {}
    for number in range(rounds):
        cold = folder / f"cache-{number}"
        for name, command, cache in (
            ("bare Spark session", [sys.executable, "-c", BARE], warm),
            ("pipeline sql, cold", asked, cold),
            ("pipeline run --once, cold", [*run, str(folder / f"cold-{number}")], folder / f"cache-run-{number}"),
            ("pipeline sql, warm", asked, warm),
            ("pipeline run --once, warm", [*run, str(folder / f"warm-{number}")], warm),
        ):
            taken.setdefault(name, []).append(first_line_s(command, java | {"XDG_CACHE_HOME": str(cache)}))
    return [
        {"what": name, "seconds": round(median(times), 2), "rounds": [round(each, 2) for each in times]}
        for name, times in taken.items()
    ]


def first_line_s(command: list[str], settings: dict[str, str]) -> float:
    began = monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | settings, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = monotonic() - began
    process.stdout.read()
    if process.wait() != 0 or not line:
        raise RuntimeError(f"{command} failed")
    return seconds


def _warm_up(command: list[str], cache: Path) -> None:
    """The first run leaves its classes behind when its Java ends; the next that finds them settled takes them."""
    first_line_s(command, {"XDG_CACHE_HOME": str(cache)})
    deadline = monotonic() + ARCHIVE_SECONDS_MAX
    while monotonic() < deadline:
        left = list((cache / "penstock").glob("*.jsa*"))
        if left and all(time.time() - each.stat().st_mtime > SETTLED_SECONDS for each in left):
            return
        time.sleep(0.5)
    raise RuntimeError("no class archive was left")
